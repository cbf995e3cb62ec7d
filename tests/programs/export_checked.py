"""Exports functions with the checks of `eqx.error_if`, and loads them.

`EQX_ON_ERROR=nan` has to be set. Argument: a folder for the files.
"""

import importlib.util
import sys

import equinox as eqx
import jax.numpy as jnp

import eqx_fastjit
from tests.export import functions


path = f"{sys.argv[1]}/checked.fastjit"
eqx_fastjit.filter_jit(functions.checked).export(functions.x()).save(path)
loaded = eqx_fastjit.load(path)
x = functions.x()
print(jnp.isnan(loaded(x + 11)).all(), jnp.isnan(loaded(x)).any())

if importlib.util.find_spec("diffrax") is not None:
    f = eqx_fastjit.filter_jit(functions.neural_ode)
    arguments = functions.neural_ode_arguments()
    f.export(*arguments).save(path, compiled=True)
    for trusted in (False, True):
        out = eqx_fastjit.load(path, trusted=trusted)(*arguments)
        assert eqx.tree_equal(out, f(*arguments), rtol=1e-5, atol=1e-6)
