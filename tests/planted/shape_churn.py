"""Each sequence has its own length."""

import equinox as eqx
import jax.numpy as jnp


@eqx.filter_jit
def total(params, tokens):
    return jnp.sum(tokens * params["scale"])


params = {"scale": jnp.ones(())}
for length in range(3, 8):
    total(params, jnp.ones(length))
