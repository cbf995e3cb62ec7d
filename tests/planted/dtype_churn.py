"""The carry begins as integers and becomes floats."""

import equinox as eqx
import jax.numpy as jnp


@eqx.filter_jit
def step(state, x):
    return state + x


state = jnp.zeros(3, dtype=jnp.int32)
for _ in range(3):
    state = step(state, jnp.ones(3))
