"""Compiles a program with a host callback, under JAX's persistent cache."""

import jax
import numpy as np


@jax.jit
def calls_back(x):
    return jax.pure_callback(lambda x: x + 1, x, x)


calls_back(np.ones(2)).block_until_ready()
