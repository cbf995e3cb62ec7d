"""Prints whether the result of a call is ready when the call returns."""

import equinox as eqx
import jax
import jax.numpy as jnp


@eqx.filter_jit
def slow(x):
    return jax.lax.fori_loop(0, 60, lambda _, y: jnp.tanh(y @ y), x)


x = jnp.ones((400, 400)) / 400
slow(x).block_until_ready()
print(slow(x).is_ready())
