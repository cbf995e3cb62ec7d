"""The run takes long, not the compilation."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp


@eqx.filter_jit
def slow(x):
    jax.debug.callback(lambda: time.sleep(1))
    return x + 1


slow(jnp.ones(2))
