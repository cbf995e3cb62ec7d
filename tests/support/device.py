"""Work for the device."""

import jax
import jax.numpy as jnp


def late(x, steps=20):
    """`x`, which is read some milliseconds after the call has returned."""
    busy = jnp.ones((300, 300)) / 300
    busy = jax.lax.fori_loop(0, steps, lambda _, y: jnp.tanh(y @ y), busy)
    return x + 0 * busy.sum().astype(x.dtype)
