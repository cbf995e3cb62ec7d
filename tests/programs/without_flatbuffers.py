"""Exports and loads in a process that has no flatbuffers, and prints the errors.

Argument: the path of an exported file.
"""

import sys


sys.modules["flatbuffers"] = None  # as if it were not installed

import jax.numpy as jnp  # noqa: E402

import eqx_fastjit  # noqa: E402


@eqx_fastjit.filter_jit
def traced(x):
    raise AssertionError("traced")


for use in (lambda: traced.export(jnp.ones(3)), lambda: eqx_fastjit.load(sys.argv[1])):
    try:
        use()
    except ValueError as e:
        print(e)
