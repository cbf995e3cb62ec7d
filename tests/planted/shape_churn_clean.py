"""Training and evaluation batches, each with a ragged last one: two epochs."""

import equinox as eqx
import jax.numpy as jnp


@eqx.filter_jit
def total(params, tokens):
    return jnp.sum(tokens * params["scale"])


def run(size, n):
    data = jnp.ones(n)
    for i in range(0, n, size):
        total(params, data[i : i + size])


params = {"scale": jnp.ones(())}
for _ in range(2):
    run(4, 11)
    run(6, 8)
