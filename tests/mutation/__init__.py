"""Mutation testing: small faults put into the source, one at a time. Do tests notice?

    python -m tests.mutation --minutes 60 --json benchmarks/results/mutation.json

`nox -s mutation` runs this in an environment of its own. Faults in Python are those of
cosmic-ray, which changes the source of one place, so that names, lines and frames stay
what they are: tracebacks and the lines in reports are part of what is tested. (mutmut
keeps all mutants of a function in one file, behind functions of its own.) Faults in C
are those of `_c.py`. Each runs in a copy of the tree, never in the checkout.
"""
