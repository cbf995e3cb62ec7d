"""Of the same step, what does go stale: a global, read by a function inside."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np


SCALE = np.float32(0.5)


@eqx.filter_jit
def make_step(x, y):
    def loss(m):
        return jnp.sum((m * SCALE - y) ** 2)

    return eqx.filter_grad(loss)(x)


for _ in range(3):
    x, y = jnp.ones(2), jnp.zeros(2)
    x = make_step(x, y)
    SCALE = SCALE * np.float32(0.5)
