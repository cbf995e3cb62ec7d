"""It is stacked once, after the loop, as the fix says."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np


@eqx.filter_jit
def move(x):
    return 0.5 * x + 1.0


x, path = jnp.zeros(3), [jnp.zeros(3)]
for _ in range(7):
    x = move(x)
    path.append(x)
print(np.asarray(jnp.stack(path)).sum())
