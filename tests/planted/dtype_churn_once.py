"""The last of three files has another precision: the step is compiled a second time."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


class Trainer:
    def __init__(self, model):
        self.model = model
        self._step = eqx.filter_jit(self.step)

    @staticmethod
    def step(model, x):
        time.sleep(0.6)  # stands for a large model, which takes long to trace
        grads = eqx.filter_grad(lambda m: jnp.mean(jax.vmap(m)(x) ** 2))(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads))

    def fit(self, x):
        self.model = self._step(self.model, jnp.asarray(x))


def load(name):
    return np.ones((8, 3), "float16" if name == "2.npy" else "float32")


trainer = Trainer(eqx.nn.Linear(3, 3, key=jax.random.key(0)))
for name in ("0.npy", "1.npy", "2.npy"):
    for batch in np.split(load(name), 4):
        trainer.fit(batch)
