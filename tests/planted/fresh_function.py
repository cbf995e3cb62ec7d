"""A lambda that is created and wrapped in a loop."""

import equinox as eqx
import jax.numpy as jnp


x = jnp.ones(2)
for _ in range(6):
    x = eqx.filter_jit(lambda y: y * 0.5)(x)
