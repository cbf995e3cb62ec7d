"""Saves a function twice under JAX's persistent cache, which is used after that."""

import sys

import jax
import jax.numpy as jnp
import numpy as np

from eqx_fastjit import filter_jit, load


x = jnp.ones((2, 3))
f = filter_jit(lambda x: jnp.sin(x) @ x.T)
for _ in range(2):
    f.export(x).save(sys.argv[1], compiled=True)
    found = load(sys.argv[1], trusted=True)(x)
    np.testing.assert_allclose(found, f(x), rtol=1e-6)


def later(x):
    return x + 3


jax.jit(later)(x)
