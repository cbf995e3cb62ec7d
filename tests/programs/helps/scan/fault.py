"""A Python loop over steps that are alike is unrolled, and compiles for seconds."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np


@eqx.filter_jit
def simulate(x, w):
    for _ in range(800):  # finding
        x = x + 0.01 * jnp.tanh(x @ w)
    return x.sum()


w = np.ones((8, 8), np.float32)
print(f"{float(simulate(w, w)):.2f}")
