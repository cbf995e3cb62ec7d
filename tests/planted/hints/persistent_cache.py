"""Compiles without a persistent cache, so the next run compiles again."""

import equinox as eqx
import jax.numpy as jnp


@eqx.filter_jit
def f(x):
    for n in range(2, 40):
        x = jnp.sort(jnp.sin(x) ** n)
    return x


f(jnp.ones(50))
