"""`filter_jit` against `equinox.filter_jit` and the plain function, on random calls.

- `values`: what an argument is, described by a hashable value (a *description*), from
  which any number of equal arguments can be made.
- `callables`: what is jitted, and what it computes.
- `strategies`: hypothesis strategies for sequences of calls of one function.
- `harness`: makes the calls and compares.

`tests/test_differential.py` runs a fixed few thousand calls;
`python -m tests.differential --cases 100000` as many as wanted.
"""
