"""The same faults under plain `jax.jit`: what JAX itself tells."""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.jit, static_argnums=1)
def power(x, n):
    return x**n


@jax.jit
def total(params, tokens):
    with jax.ensure_compile_time_eval():
        jnp.ones(len(tokens)) + 1  # compiled while this is traced
    return jnp.sum(tokens * params["scale"])


for n in range(2, 7):
    power(jnp.ones(2), n)
for length in range(3, 8):
    total({"scale": jnp.ones(())}, jnp.ones(length))
for _ in range(6):
    jax.jit(lambda x: x + 1)(jnp.ones(2))
