"""Mutation testing: whether the tests notice small faults in the source.

    python -m tests.mutation --minutes 60 --json benchmarks/results/mutation.json

`nox -s mutation` runs this in a separate environment. Each mutant is a single fault, in
a copy of the tree and never in the checkout. Mutants of Python are those of cosmic-ray.
It edits the source in place, which preserves names, line numbers and frames, and so the
tracebacks and reports under test. (mutmut puts all mutants of a function into one file,
behind wrapper functions.) Mutants of C are made by `_c.py`.
"""
