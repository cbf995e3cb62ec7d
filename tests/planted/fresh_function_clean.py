"""A step for each of three configurations; modules that are wrapped again."""

import equinox as eqx
import jax
import jax.numpy as jnp


def make_step(rate):
    @eqx.filter_jit
    def step(x):
        return x - rate * x

    return step


for rate in (0.1, 0.2, 0.3):
    step = make_step(rate)
    x = jnp.ones(2)
    for _ in range(3):
        x = step(x)

for _ in range(6):
    eqx.filter_jit(eqx.nn.Linear(2, 2, key=jax.random.key(0)))(x)
