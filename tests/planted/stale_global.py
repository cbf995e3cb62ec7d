"""A setting that is changed after the function was traced."""

import equinox as eqx
import jax.numpy as jnp


RATE = 0.5


@eqx.filter_jit
def step(x):
    return x - RATE * x


x = step(jnp.ones(2))
RATE = 0.05
x = step(x)
