"""The same, with a cache directory."""

import tempfile

import equinox as eqx
import jax
import jax.numpy as jnp


@eqx.filter_jit
def f(x):
    for n in range(2, 40):
        x = jnp.sort(jnp.sin(x) ** n)
    return x


with tempfile.TemporaryDirectory() as folder:
    jax.config.update("jax_compilation_cache_dir", folder)
    f(jnp.ones(50))
