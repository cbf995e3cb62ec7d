"""A state comes from a Python number, and is weakly typed in the first call alone."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np


@eqx.filter_jit
def update(loss, x):
    for _ in range(40):
        x = jnp.tanh(x @ x.T)
    return 0.9 * loss + x.sum()


x = np.ones((8, 8), np.float32)
loss = jnp.asarray(0.0)
for _ in range(3):
    loss = update(loss, x)  # finding
print(f"{float(loss):.4f}")
