"""The same function under one precision after the other."""

import equinox as eqx
import jax
import jax.numpy as jnp


@eqx.filter_jit
def product(x):
    return x @ x


for precision in ("bfloat16", "tensorfloat32", "float32", "highest", "default"):
    with jax.default_matmul_precision(precision):
        product(jnp.ones((4, 4)))
