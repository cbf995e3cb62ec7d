"""The smaller batch is left out, as the fix says."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np


@eqx.filter_jit
def step(w, x):
    for _ in range(40):
        w = w - 0.01 * jnp.tanh(x @ w).mean() * w
    return w


@eqx.filter_jit
def per_example(w, n):
    for _ in range(40):
        w = jnp.sin(w) / n
    return w.sum()


data = np.linspace(0, 1, 80, dtype=np.float32).reshape(20, 4)
w = np.ones((4, 4), np.float32)
losses = []
for start in range(0, len(data) - len(data) % 8, 8):
    batch = data[start : start + 8]
    w = step(w, batch)
    losses.append(per_example(w, len(batch)))
print([f"{float(loss):.4e}" for loss in losses[:2]])
