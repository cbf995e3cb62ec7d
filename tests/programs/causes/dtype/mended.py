"""The state begins with the dtype that it keeps, as the fix says."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np


@eqx.filter_jit
def update(loss, x):
    for _ in range(40):
        x = jnp.tanh(x @ x.T)
    return 0.9 * loss + x.sum()


x = np.ones((8, 8), np.float32)
loss = jnp.asarray(0.0, dtype=jnp.float32)
for _ in range(3):
    loss = update(loss, x)
print(f"{float(loss):.4f}")
