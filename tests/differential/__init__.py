"""Random programs: eqx_fastjit against no jit, `equinox.filter_jit` and the reference.

Hypothesis draws a *program* as plain data (`draws.py`): descriptions of values, and
steps that call a jitted function with them or change them in place. `trees.py` builds
the values, `outcomes.py` runs a program and says what each call gave. Plain data can be
shrunk, printed, and sent to a process with the other engine (`reference_process.py`).

The profile `ci` takes a minute, `night` some hours, in which no test times out:

    HYPOTHESIS_PROFILE=night pytest tests/differential -o faulthandler_timeout=0
"""
