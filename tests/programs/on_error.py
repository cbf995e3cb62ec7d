"""Prints what `EQX_ON_ERROR` makes of an error."""

import equinox as eqx
import jax.numpy as jnp

from eqx_fastjit import filter_jit


f = filter_jit(lambda x: eqx.error_if(x, x < 0, "negative") * 2)
print(f(jnp.array(1.0)), f(jnp.array(1.0)))
try:
    print(f(jnp.array(-1.0)))
except RuntimeError as e:
    print(type(e).__name__)
