"""Two precisions that are compared, each with a step that takes long to trace."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp


@eqx.filter_jit
def step(model, x):
    time.sleep(0.6)
    return jnp.mean(jax.vmap(model)(x) ** 2)


model = eqx.nn.Linear(3, 3, key=jax.random.key(0))
losses = {}
for dtype in (jnp.float32, jnp.bfloat16):
    for _ in range(3):
        losses[dtype] = step(model, jnp.ones((8, 3), dtype))
