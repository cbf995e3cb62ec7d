"""Two hundred steps in a Python loop."""

import equinox as eqx
import jax.numpy as jnp


@eqx.filter_jit
def simulate(x, force):
    for _ in range(200):
        x = x + 0.01 * jnp.sin(x) * force
    return x


simulate(jnp.ones(3), jnp.ones(3))
