"""Sixteen threads wrap, call, change, clear and fail for some seconds.

`native_threads.py SECONDS`. Prints `done` if each result was right.
"""

import random
import sys
import threading
import time

import equinox as eqx
import jax
import jax.numpy as jnp

from eqx_fastjit import filter_jit
from tests.support.modules import Holder


X = jnp.ones(2)
shared = filter_jit(lambda h, n: (h.x * n, h.static))
checked = filter_jit(lambda x: eqx.error_if(x, x < 0, "negative"))
errors = []
end = time.monotonic() + float(sys.argv[1])


def call(rng):
    n, static = rng.choice([1, 2.0, True, 3]), [rng.randrange(4)]
    out, same = shared(Holder(X, static), n)
    assert out.tolist() == [n, n] and same == static


def wrap(rng):
    i = rng.randrange(1000)
    f = filter_jit(lambda x, k=i: x + k)
    assert f(X).tolist() == [1 + i] * 2


def fail(rng):
    assert checked(X[0]) == 1
    try:
        checked(-X[0])
    except eqx.EquinoxRuntimeError:
        return
    raise AssertionError


def transform(rng):
    n = rng.randrange(1, 4)
    grads = jax.grad(lambda x: shared(Holder(x, []), n)[0].sum())(X)
    assert grads.tolist() == [n, n]


def clear(rng):
    if rng.random() < 0.2:
        shared.clear_cache()


def lower(rng):
    assert shared.lower(Holder(X, [9]), 2).compile()(Holder(X, [9]), 2)[1] == [9]


def run(seed):
    rng = random.Random(seed)
    try:
        while time.monotonic() < end and not errors:
            rng.choice([call, call, call, wrap, fail, transform, clear, lower])(rng)
    except BaseException as e:
        errors.append(e)
        raise


threads = [threading.Thread(target=run, args=(i,)) for i in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if not errors:
    print("done")
