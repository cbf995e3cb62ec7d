"""Tracing takes long: with `--slow 0.5`, a finding."""

import time

import equinox as eqx
import jax.numpy as jnp


@eqx.filter_jit
def slow(x):
    time.sleep(1)
    return x + 1


slow(jnp.ones(2))
