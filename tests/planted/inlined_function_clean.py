"""The same block for all shifts at once, and by hand a few times."""

import equinox as eqx
import jax
import jax.numpy as jnp


def block(x, shift):
    y = jnp.sin(x + shift) * jnp.cos(x - shift)
    z = jnp.tanh(y * 0.5 + x) * jnp.exp(-y * y)
    return z / (1.0 + jnp.abs(y)) + jnp.sqrt(1.0 + z * z)


@eqx.filter_jit
def network(x):
    shifts = jnp.arange(1.0, 25.0)
    x = jax.lax.scan(lambda x, shift: (block(x, shift), None), x, shifts)[0]
    x = block(x, 1.0)
    x = block(x, 2.0)
    return block(x, 3.0)


network(jnp.ones(3))
