"""Training in the default precision, evaluation in another: two programs."""

import equinox as eqx
import jax
import jax.numpy as jnp


@eqx.filter_jit
def product(x):
    return x @ x


for _ in range(10):
    product(jnp.ones((4, 4)))
    with jax.default_matmul_precision("highest"):
        product(jnp.ones((4, 4)))
