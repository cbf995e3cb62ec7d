"""Prints by how much each kind of use grows a process.

Bytes of Python's memory for each use, and bytes of the process in all.

`memory.py [equinox]`: with Equinox's `filter_jit`, for comparison.
"""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from eqx_fastjit import filter_jit
from tests.support.memory import growth


jit = eqx.filter_jit if sys.argv[1:] == ["equinox"] else filter_jit
X = jnp.array(1.0)


def calls():
    f = jit(lambda m, x, n: (m(x), n, m))
    model = eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0))
    x = jnp.ones(2)
    return lambda i: f(model, x, i % 3)


def outputs():
    f = jit(lambda x, n: (x + n, {"n": n}))
    x = jnp.ones(10_000)
    held = []

    def do(i):
        held.append(f(x, 1))
        if len(held) == 50:
            held.clear()

    return do


def methods():
    class Model(eqx.Module):
        w: jax.Array

        @jit
        def step(self, x):
            return self.w * x

    return lambda i: Model(X).step(X)


def wrapped():
    return lambda i: jit(lambda x: x + i)


def lambdas():
    return lambda i: jit(lambda x: (x + 1, i))(X)


def classes():
    def do(i):
        class Own(eqx.Module):
            w: jax.Array
            n: int = eqx.field(static=True)

        jit(lambda m, x: (m.w * x, m))(Own(X, i), X)

    return do


def retraces():
    """Of a large model. All is dropped but what is kept for those who ask later."""
    model = [jnp.ones(1 + i % 5) for i in range(2_000)]
    f = jit(lambda model, x: x.sum())

    def do(i):
        f(model, np.ones(i + 1, np.float32))
        eqx.clear_caches()
        jax.clear_caches()

    return do


AMOUNTS = {
    calls: 20_000,
    outputs: 1_000,
    methods: 4_000,
    wrapped: 4_000,
    lambdas: 120,
    classes: 120,
    retraces: 16,
}
for kind, n in AMOUNTS.items():
    each, in_all = growth(kind(), n)
    print(kind.__name__, round(each, 1), in_all)
