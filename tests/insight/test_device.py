"""The doctor says how long the device computed, and changes nothing of a program."""

import gc
import time
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import filter_jit
from eqx_fastjit.insight import doctor
from tests.support.device import late


# --- what the device did ---

X = jnp.ones(())
compute = jax.jit(lambda x: late(x, 2))
long_call = filter_jit(lambda x: late(x, 2))
short_call = filter_jit(lambda x: x + 1)
checking = filter_jit(lambda x: eqx.error_if(late(x, 2), x < 0, "negative"))

# What an iteration does, and what most of its time is called.
LOOPS = {
    "long calls, each read": (lambda: float(long_call(X)), "device"),
    "JAX computes in the call": (lambda: checking(X), "device"),
    "outside of jit": (lambda: float(compute(short_call(X))), "device"),
    "Python, each read": (lambda: (float(short_call(X)), time.sleep(3e-3)), "python"),
}


@pytest.mark.parametrize(("iteration", "most"), LOOPS.values(), ids=LOOPS)
def test_what_most_of_the_time_is(iteration, most):
    iteration()
    with doctor() as report:
        for _ in range(100):
            iteration()
    assert report.to_dict()["time"][0]["name"] == most


def test_only_calls_that_run_and_compile_nothing_count():
    """The row on what could be donated says how many there were."""
    inner = filter_jit(lambda x: x + 1)
    outer = filter_jit(lambda x: inner(x) / 2)
    with doctor() as report:
        x = jnp.ones((1200, 1200))
        for _ in range(20):
            x = outer(x)
        for _ in range(10):
            jax.jit(lambda x: inner(x))(X)
            jax.grad(lambda x: inner(x).sum())(X)
    donated = [x.parts[0] for x in report.rows if x.parts[0].rule == "donate"]
    assert [part.count for part in donated] == [19]


# --- calls are as they were ---


class Scaled(eqx.Module):
    by: jax.Array

    @filter_jit
    def method(self, x):
        return {"y": self.by * x, "name": "a"}


@filter_jit(donate="all")
def donating(x):
    return x + 1


@filter_jit
def checked(x):
    return eqx.error_if(x, x[0] < 0, "negative") + 1


@filter_jit
def reporting(x):
    jax.debug.callback(lambda x: None, x)


CALLS = {
    "a method": lambda x: Scaled(x).method(x),
    "donations": lambda x: (donating(donating(x)), x.is_deleted()),
    "an error": lambda x: checked(-x),
    "no result": reporting,
    "grad": lambda x: jax.grad(lambda x: Scaled(x).method(x)["y"].sum())(x),
    "vmap": lambda x: jax.vmap(lambda x: Scaled(x).method(2 * x)["y"])(x),
    "jit": lambda x: filter_jit(lambda x: Scaled(x).method(x)["y"] + 1)(x),
    "NumPy": lambda x: Scaled(x).method(np.arange(3.0, dtype=np.float32)),
    "ahead of time": lambda x: filter_jit(lambda x: x + 1).lower(x).compile()(x),
}


def outcome(f):
    try:
        return [str(f(jnp.arange(1.0, 4.0) + i)) for i in range(3)]
    except Exception as e:
        return type(e).__name__, str(e).partition("\n")[0]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_results_and_errors_are_the_same(call):
    eqx.clear_caches()
    expected = outcome(call)
    eqx.clear_caches()
    with doctor():
        assert outcome(call) == expected


def test_one_array_is_kept():
    """The smallest result, which tells when the device is done, until the next call."""
    f = filter_jit(lambda x: (x.sum(), 2 * x))
    x = jnp.ones(1000)
    with doctor():
        for _ in range(60):
            y, z = f(x)
        found = [weakref.ref(array) for array in (x, y, z)]
        del x, y, z
        gc.collect()
        assert [ref() is None for ref in found] == [True, False, True]
        f(jnp.ones(1000))
        assert found[1]() is None
        y, _ = f(jnp.ones(1000))
    found = weakref.ref(y)
    del y
    gc.collect()
    assert found() is None
