"""Random calls of `filter_jit`, `equinox.filter_jit` and the plain function.

- `values`: arguments, each described by a hashable value (a *description*) from which
  any number of equal arguments can be created.
- `callables`: the functions that are jitted, and what they compute.
- `strategies`: hypothesis strategies for sequences of calls of one function.
- `harness`: makes the calls, and compares the outcomes.

`tests/test_differential.py` runs a fixed number of calls, a few thousand;
`python -m tests.differential --cases 100000` runs any number.
"""
