"""The state begins as floats, as the fix says."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np


@eqx.filter_jit
def update(state, x):
    for _ in range(40):
        x = jnp.tanh(x @ x.T)
    return state + x


x = np.ones((8, 8), np.float32)
state = jnp.asarray(np.zeros((8, 8), np.int32), dtype=jnp.float32)
for _ in range(3):
    state = update(state, x)
print(f"{float(state.sum()):.4f}")
