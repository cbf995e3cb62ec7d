"""16 threads call, wrap, clear and change statics at once; each result is its own.

Promise 29 of docs/reliability.md.

For a second, under each engine; docs/reliability.md has the command for a minute.
"""

import os
import threading
import time

import equinox as eqx
import jax
import jax.numpy as jnp

from eqx_fastjit import filter_jit
from tests.support.modules import Holder, Node


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
    errors, barrier, counts = [], threading.Barrier(16), [0] * 16

    def run(i):
        try:
            barrier.wait()
            end = time.monotonic() + SECONDS
            while time.monotonic() < end and not errors:
                WORK[i % len(WORK)](f, i, counts[i])
                counts[i] += 1
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert min(counts) > 0
