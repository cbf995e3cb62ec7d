"""The function is made once, and what changes is an argument."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np


@eqx.filter_jit
def smooth(x, scale):
    for _ in range(40):
        x = jnp.tanh(x @ x.T) * scale
    return x


x = np.ones((8, 8), np.float32)
for scale in (0.5, 1.0, 1.5):
    y = smooth(x, jnp.asarray(scale))
    print(f"{float(y.sum()):.4f}")
