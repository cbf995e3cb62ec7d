"""A simulation that is run outside of any jitted function."""

import equinox as eqx
import jax
import jax.numpy as jnp


def simulate(x):
    # So many, different ones, that XLA takes its time.
    def step(x, _):
        for i in range(150):
            x = jnp.sort(jnp.sin(x) * i)
        return x, None

    return jax.lax.scan(step, x, length=3)[0]


@eqx.filter_jit
def total(x):
    return jnp.sum(x)


xs = jax.vmap(simulate)(jnp.ones((4, 50)))
total(xs)
