"""The number is an argument."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np


@eqx.filter_jit
def scaled(x, scale):
    return x * scale


x = np.ones(3, np.float32)
scale = 0.5
for _ in range(3):
    print(float(scaled(x, jnp.asarray(scale)).sum()))
    scale = scale / 2
