"""The number is an array; a mode and an exponent are static, as they should be."""

import equinox as eqx
import jax.numpy as jnp


@eqx.filter_jit
def decay(x, step, mode, power):
    return x * 0.5**step if mode == "train" else x**power


x = jnp.ones(4)
for step in range(5):
    x = decay(x, jnp.asarray(step), "train", 2)
for power in (2, 3):
    decay(x, jnp.asarray(0), "eval", power)
print(x.shape)
