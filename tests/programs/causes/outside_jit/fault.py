"""An array grows in a loop outside of jit: each length is another program."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np


@eqx.filter_jit
def move(x):
    return 0.5 * x + 1.0


x, path = jnp.zeros(3), jnp.zeros((1, 3))
for _ in range(7):
    x = move(x)
    path = jnp.concatenate([path, x[None]])  # finding
print(np.asarray(path).sum())
