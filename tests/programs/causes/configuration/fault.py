"""The precision of products changes between calls."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


@eqx.filter_jit
def product(x):
    for _ in range(40):
        x = jnp.tanh(x @ x.T)
    return x.sum()


x = np.ones((8, 8), np.float32)
for precision in ("highest", "float32", "default"):
    with jax.default_matmul_precision(precision):
        print(f"{float(product(x)):.4f}")  # finding
