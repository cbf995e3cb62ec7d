"""16 threads call, wrap, clear and change statics at once; each result is its own.

Promise 29 of docs/reliability.md.

For a second, under each engine; docs/reliability.md has the command for a minute.
"""

import os
import time

import equinox as eqx
import jax
import jax.numpy as jnp

from eqx_fastjit import filter_jit
from tests.support.modules import Holder, Node
from tests.support.threads import in_threads


SECONDS = float(os.environ.get("EQX_FASTJIT_SECONDS", "1"))
X = jnp.ones(2)


def shared_function(f, i, n):
    out, same = f(Holder(X, (i % 3, n % 4)), n % 2)
    assert out.tolist() == [i % 3 + n % 4] * 2 and same == n % 2


def new_function(f, i, n):
    thing = object()
    out, same = filter_jit(lambda x, y: (x + n % 3, y))(X, thing)
    assert same is thing and out[0] == 1 + n % 3


def new_class(f, i, n):
    cls = type("Own", (eqx.Module,), {"__annotations__": {"w": jax.Array}})
    module = object.__new__(cls)
    object.__setattr__(module, "w", X)
    assert f(Holder(X, (module is not None, 1)), cls)[1] is cls


def changed_static(f, i, n):
    values = [n % 3]
    assert f(Holder(X, values), 0)[0][0] == n % 3
    values.append(5)
    assert f(Holder(X, values), 0)[0][0] == n % 3 + 5


def node(f, i, n):
    out, same = f(Holder(X, (1, 1)), Node([X], i))
    assert same.aux == i and out[0] == 2


def cleared(f, i, n):
    if n % 20 == 0:
        (f.clear_cache, eqx.clear_caches)[n // 20 % 2]()
    shared_function(f, i, n)


WORK = [shared_function, new_function, new_class, changed_static, node, cleared]


def test_threads():
    f = filter_jit(lambda m, y: (m.x * sum(m.static), y))
    f(Holder(X, (0, 0)), 0)
    counts = [0] * 16

    def work(i):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            WORK[i % len(WORK)](f, i, counts[i])
            counts[i] += 1

    in_threads(16, work)
    assert min(counts) > 0
