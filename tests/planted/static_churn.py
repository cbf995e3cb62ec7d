"""A Python number that changes is an argument: each value recompiles."""

import equinox as eqx
import jax.numpy as jnp


@eqx.filter_jit
def decay(x, step):
    return x * 0.5**step


x = jnp.ones(4)
for step in range(5):
    x = decay(x, step)
print(x.shape)
