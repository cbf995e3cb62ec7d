"""The same function, loaded from a file, which this run also writes."""

import os
import tempfile

import jax.numpy as jnp

import eqx_fastjit


@eqx_fastjit.filter_jit
def f(x):
    for n in range(2, 40):
        x = jnp.sin(x) ** n
    return x


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "f.fastjit")
    f.export(jnp.ones(50)).save(path, portable=False, compiled=True)
    eqx_fastjit.load(path, trusted=True)(jnp.ones(50))
