"""A block of some size, called from many places."""

import equinox as eqx
import jax.numpy as jnp


def block(x, shift):
    y = jnp.sin(x + shift) * jnp.cos(x - shift)
    z = jnp.tanh(y * 0.5 + x) * jnp.exp(-y * y)
    return z / (1.0 + jnp.abs(y)) + jnp.sqrt(1.0 + z * z)


@eqx.filter_jit
def network(x0):
    x1 = block(x0, 1.0)
    x2 = block(x1, 2.0)
    x3 = block(x2, 3.0)
    x4 = block(x3, 4.0)
    x5 = block(x4, 5.0)
    x6 = block(x5, 6.0)
    x7 = block(x6, 7.0)
    x8 = block(x7, 8.0)
    x9 = block(x8, 9.0)
    x10 = block(x9, 10.0)
    x11 = block(x10, 11.0)
    x12 = block(x11, 12.0)
    x13 = block(x12, 13.0)
    x14 = block(x13, 14.0)
    x15 = block(x14, 15.0)
    x16 = block(x15, 16.0)
    x17 = block(x16, 17.0)
    x18 = block(x17, 18.0)
    x19 = block(x18, 19.0)
    x20 = block(x19, 20.0)
    x21 = block(x20, 21.0)
    x22 = block(x21, 22.0)
    x23 = block(x22, 23.0)
    x24 = block(x23, 24.0)
    return x24


network(jnp.ones(3))
