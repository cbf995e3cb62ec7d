"""Traces and lowers a function that is the same in each run."""

import equinox as eqx
import jax.numpy as jnp


@eqx.filter_jit
def f(x):
    for n in range(2, 40):
        x = jnp.sin(x) ** n
    return x


f(jnp.ones(50))
