"""The carry has the dtype of later steps from the start."""

import equinox as eqx
import jax.numpy as jnp


@eqx.filter_jit
def step(carry, x):
    return {"loss": carry["loss"] + jnp.sum(x)}


carry = {"loss": jnp.zeros((), dtype=jnp.float32)}
for _ in range(3):
    carry = step(carry, jnp.ones(3))
