"""Plain `jax.jit` as it is meant, jitted functions inside of others included."""

import functools

import jax
import jax.numpy as jnp


@jax.jit
def layer(w, x):
    return jnp.tanh(w @ x)


@functools.partial(jax.jit, static_argnames="n")
def model(ws, x, n):
    for w in ws:
        x = layer(w, x)
    return x * n


ws = [jnp.ones((i + 1, i)) for i in range(2, 9)]
for n in (1, 2):
    for _ in range(3):
        model(ws, jnp.ones(2), n=n)
