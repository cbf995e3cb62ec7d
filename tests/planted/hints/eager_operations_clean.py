"""The same operations in one jitted function."""

import equinox as eqx
import jax.numpy as jnp


@eqx.filter_jit
def step(x):
    x = x * 0.5
    return jnp.where(x > 1e-3, jnp.sqrt(jnp.abs(x)) + jnp.sin(x), jnp.cos(x) - 0.5)


x = jnp.ones(4)
for _ in range(6000):
    x = step(x)
x.block_until_ready()
