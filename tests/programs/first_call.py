"""Prints how often the first function of a process was traced, and the engine."""

import equinox as eqx
import jax.numpy as jnp

import eqx_fastjit


class Layer(eqx.Module):
    weight: object
    size: tuple = eqx.field(static=True)


traces = []
f = eqx_fastjit.filter_jit(lambda m: traces.append(1))
for _ in range(3):
    f(Layer(jnp.ones(2), (2, 3)))
print(len(traces), eqx_fastjit.engine())
