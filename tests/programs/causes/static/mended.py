"""The number is an array, as the fix says."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np


@eqx.filter_jit
def step(x, rate):
    for _ in range(40):
        x = x - rate * jnp.sin(x @ x.T)
    return x


x = np.ones((8, 8), np.float32)
for epoch in range(3):
    rate = 0.1 / (1 + epoch)
    x = step(x, jnp.asarray(rate))
    print(f"{float(x.sum()):.3f}")
