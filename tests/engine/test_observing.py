"""Whoever observes calls makes them, and is told what they wait for."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import filter_jit
from eqx_fastjit._engine import observe


class Observer:
    """Notes all that the engine tells."""

    def __init__(self):
        self.calls, self.waits, self.began = [], [], 0

    def clock(self):
        self.began += 1
        return self.began

    def call(self, jitted, specialization, values, arrays, numpy_bytes, began):
        shapes = [x.shape for x in arrays]
        self.calls.append((values, shapes, numpy_bytes, began))
        assert specialization.flat.info.name
        return jitted(*arrays)

    def wait(self, wait, arrays, why):
        wait(arrays)
        assert all(x.is_ready() for x in arrays)
        self.waits.append((why, [x.shape for x in arrays]))


@pytest.fixture
def observer():
    observer = Observer()
    assert observe(observer) is None
    yield observer
    observe(None)


def test_calls_are_made_by_the_observer(observer):
    """Also of what was compiled before; with the bytes of arrays of NumPy."""
    observe(None)
    f = filter_jit(lambda x, n: (x * n, {"sum": x.sum()}))
    f(jnp.ones(3), 2)
    assert observer.calls == []
    observe(observer)
    x = np.ones(3, np.float32)
    out, sums = f(x, 2)
    assert (out.tolist(), sums["sum"].item()) == ([2, 2, 2], 3)
    assert observer.calls == [((x, 2), [(3,)], 12, 1)]
    assert observe(None) is observer
    f(x, 2)
    assert (len(observer.calls), observer.waits) == (1, [])


def test_calls_ahead_of_time_and_errors(observer):
    compiled = filter_jit(lambda x: x + 1).lower(jnp.ones(2)).compile()
    assert compiled(jnp.ones(2)).tolist() == [2, 2]
    assert [shapes for _, shapes, _, _ in observer.calls] == [[(2,)]]
    with pytest.raises(ValueError, match="of the user's"):
        filter_jit(_raising)(jnp.ones(2))


def _raising(x):
    raise ValueError("of the user's")


def _checked(x):
    return eqx.error_if(x, jnp.sum(x) < 0, "negative") + 1, x.sum()


WAITS = {
    "asynchronous": ({}, lambda x: (x + 1, x.sum()), jnp.ones(3), []),
    "asked": (
        {"asynchronous": False},
        lambda x: (x + 1, x.sum()),
        jnp.ones(3),
        [("asked", [(3,), ()])],
    ),
    "a runtime check": ({}, _checked, jnp.ones(3), [("needed", [(3,), ()])]),
    "no result": (
        {"asynchronous": False},
        lambda x: None,
        jnp.ones(3),
        [("asked", [])],
    ),
    "NumPy": (
        {},
        lambda x: x + 1,
        np.ones(1 << 19, np.float32),
        [("needed", [(1 << 19,)])],
    ),
}


@pytest.mark.parametrize("case", WAITS)
def test_each_wait_is_told(observer, case):
    """Of all results, and why; without any, of the effects of a call."""
    options, fun, x, expected = WAITS[case]
    f = filter_jit(fun, **options)
    f(x)
    observer.waits.clear()
    f(x)
    assert observer.waits == expected


def test_a_clock_that_raises_ends_no_call(observer):
    observer.clock = lambda: 1 / 0
    observe(observer)
    assert filter_jit(lambda x: x + 1)(jnp.ones(2)).tolist() == [2, 2]
    assert observer.calls[-1][-1] is None
