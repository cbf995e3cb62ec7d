"""The carry begins as a Python number and is strongly typed after a step."""

import equinox as eqx
import jax.numpy as jnp


@eqx.filter_jit
def step(carry, x):
    return {"loss": carry["loss"] + jnp.sum(x)}


carry = {"loss": jnp.asarray(0.0)}
for _ in range(3):
    carry = step(carry, jnp.ones(3))
