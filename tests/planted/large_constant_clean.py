"""The data set is an argument; a small table is not."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np


TABLE = np.linspace(0.0, 1.0, 1000, dtype=np.float32)


@eqx.filter_jit
def loss(w, data):
    return jnp.mean((data @ w) ** 2) + jnp.sum(TABLE * w)


loss(jnp.ones(1000), jnp.ones((1500, 1000)))
