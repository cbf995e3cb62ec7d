"""NumPy buffers that JAX reads in place, and computations that take a while."""

import jax
import jax.numpy as jnp
import numpy as np


def aligned(shape, value=0.0, dtype=np.float32):
    """A NumPy array that JAX uses without a copy on the CPU, as it is aligned."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    out = memory[start : start + size].view(dtype).reshape(shape)
    out[...] = value
    return out


def late(x, iterations=20):
    """`x`, which is read after the caller could have changed it."""
    busy = jnp.ones((300, 300)) / 300
    busy = jax.lax.fori_loop(0, iterations, lambda _, y: jnp.tanh(y @ y), busy)
    return x + 0 * busy.sum().astype(x.dtype)
