"""Compiles a function for as many numbers as it is told, and waits to be ended."""

import sys

import jax.numpy as jnp
import numpy as np

import eqx_fastjit


@eqx_fastjit.filter_jit
def step(x, n):
    return jnp.sin(x) * n


for i in range(int(sys.argv[1])):
    step(np.ones(4, np.float32), i)
print("ready", flush=True)
sys.stdin.read()
