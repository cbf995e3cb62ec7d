"""16 threads call, wrap, clear, change statics, raise and are interrupted at once.

Threads may do so at the same time, and each call has its own result.

For a second, under each engine; docs/reliability.md has the command for a minute.
"""

import _thread
import contextlib
import ctypes
import os
import time

import equinox as eqx
import jax.numpy as jnp
import pytest

from eqx_fastjit import filter_jit
from tests.support.modules import Holder, Node, Unhashed
from tests.support.threads import in_threads


SECONDS = float(os.getenv("EQX_FASTJIT_SECONDS", "1"))
X = jnp.ones(2)


class Listed(Unhashed):
    def __iter__(self):
        return iter(self.value)


# All threads change these. No other call has an equal static: what a thread changes and
# changes back within a trace is not noticed (docs/contract.md).
LIST, DICT, ATTRIBUTE = [10], {}, Listed([0])
SHARED = [Holder(X, static) for static in (LIST, DICT, ATTRIBUTE)]


def shared_function(f, i, n):
    out, same = f(Holder(X, (i % 3, n % 4)), Node([X], i))
    assert out[1] == i % 3 + n % 4 and same.aux == i


def new_function(f, i, n):
    out, same = filter_jit(lambda x, y: (x + n % 3, y))(X, new_class)
    assert same is new_class and out[0] == 1 + n % 3


def new_class(f, i, n):
    cls = type("Own", (eqx.Module,), {})
    _, (same, module) = f(Holder(X, (1,)), [cls, cls()])
    assert same is type(module) is cls


def own_static(f, i, n):
    values = []
    for value in (n % 3, 5):
        values.append(value)
        assert f(Holder(X, values), 0)[0][0] == sum(values)


def shared_static(f, i, n):
    """It is seen as it was at some time; or the call says that it has another size."""
    LIST[0] = 10 + n % 4
    ATTRIBUTE.value = [n % 4]
    DICT.clear() if n % 2 else DICT.setdefault(n % 4)
    try:
        found = f(SHARED[n % 3], 0)[0][0]
        assert found - (0 if n % 3 else 10) in range(4)
    except RuntimeError as e:
        assert "changed" in str(e)


def cleared(f, i, n):
    if n % 20 == 0:
        (f.clear_cache, eqx.clear_caches)[n // 20 % 2]()
    shared_function(f, i, n)


def raises(f, i, n):
    with pytest.raises(TypeError, match="unsupported operand"):
        f(Holder(X, [None, i]), n % 3)


def interrupted(f, i, n):
    """Wherever it is, also while it compiles; of a finalizer, Python only shows it."""
    told = ctypes.c_ulong(_thread.get_ident()), ctypes.py_object(KeyboardInterrupt)
    sent = []

    def send():
        time.sleep(n % 7 / 1000)
        sent.append(ctypes.pythonapi.PyThreadState_SetAsyncExc(*told))

    with contextlib.suppress(KeyboardInterrupt):
        _thread.start_new_thread(send, ())  # which waits for nothing, as `Thread` does
        while not sent:
            new_function(f, i, n)
            shared_function(f, i, n)
        time.sleep(0)  # at the latest, it is raised here


WORK = shared_function, new_function, new_class, own_static, shared_static
WORK += cleared, raises, interrupted


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_threads():
    f = filter_jit(lambda m, y: (m.x * sum(m.static), y))
    end = time.monotonic() + SECONDS

    def work(i):
        n = 0
        while n < len(WORK) or time.monotonic() < end:
            WORK[(i + n) % len(WORK)](f, i, n)
            n += 1

    in_threads(16, work)
    LIST[0], ATTRIBUTE.value, DICT[20] = 20, [20], None  # which nobody has traced
    for held in SHARED:
        assert f(held, 0)[0][0] == sum(held.static)
