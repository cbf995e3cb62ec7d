"""Reads the losses at the end, and one of them now and then."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp


@eqx.filter_jit
def step(x):
    x = jax.lax.fori_loop(0, 20, lambda _, y: jnp.tanh(y @ y), x)
    return x, jnp.sum(x)


def batch():
    time.sleep(0.03)


x, _ = step(jnp.eye(300))
losses = []
for i in range(25):
    batch()
    x, loss = step(x)
    losses.append(loss)
    if i % 10 == 0:
        print(i, float(loss) >= 0)
print(sum(map(float, losses)) >= 0)
