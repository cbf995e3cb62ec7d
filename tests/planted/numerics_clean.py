"""Differences of rounding alone; a function that donates its argument."""

import equinox as eqx
import jax
import jax.numpy as jnp


@eqx.filter_jit
def fine(model, x):
    return jax.vmap(model)(x), {"seen": jnp.sum(jnp.exp(x)), "name": "fine"}


@eqx.filter_jit(donate="all")
def donates(x):
    return x + 1


fine(eqx.nn.MLP(3, 3, 8, 2, key=jax.random.key(0)), jnp.ones((5, 3)))
donates(jnp.ones(3))
