"""Eager overflows where the compiler simplifies."""

import equinox as eqx
import jax.numpy as jnp


@eqx.filter_jit
def lost(x, y):
    return {"kept": x + y, "product": jnp.exp(x) * jnp.exp(-x)}


lost(jnp.asarray(100.0), jnp.asarray(1.234))
