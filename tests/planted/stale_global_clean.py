"""Counters of traces, a setting that stays, and one that is an argument."""

import equinox as eqx
import jax.numpy as jnp


RATE = 0.5
traces = 0
shapes = []


@eqx.filter_jit
def step(x, rate):
    global traces
    traces += 1
    shapes.append(x.shape)
    return x - RATE * rate * x


rate = jnp.asarray(0.5)
for n in (2, 3):
    x = jnp.ones(n)
    for _ in range(3):
        x = step(x, rate)
        rate = rate * 0.5


@eqx.filter_jit
def scaled(x):
    return x * factor


# In the second stage calls have another length, so that it is traced with its value.
for factor, n in ((2.0, 2), (3.0, 3)):
    for _ in range(3):
        scaled(factor * jnp.ones(n))


# Each stage has a function of its own: nobody can call the first one any more.
def shift(value):
    global offset
    offset = value
    shifted = eqx.filter_jit(lambda x: x + offset)
    shifted(jnp.ones(2))


shift(1.0)
shift(2.0)
