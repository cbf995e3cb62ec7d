"""The model is made in one function under jit, as the fix says."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


class Model(eqx.Module):
    layers: list

    def __init__(self, key):
        self.layers = []
        for i in range(8, 13):
            key, subkey = jax.random.split(key)
            w = jax.random.normal(subkey, (i, i + 1))
            self.layers.append(w / jnp.sqrt(i))

    def __call__(self, x):
        for w in self.layers:
            x = jnp.tanh(x @ w)
        return x.sum()


model = eqx.filter_jit(Model)(jax.random.key(0))
print(f"{float(eqx.filter_jit(model)(np.ones(8, np.float32))):.3f}")
