"""The doctor says how long the device was idle, and what running ahead of it saves."""

import gc
import types
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import _blocking, filter_jit
from eqx_fastjit._facts import Place
from eqx_fastjit.insight.record import _calls
from eqx_fastjit.insight.record._calls import Calls, Use
from eqx_fastjit.insight.record._waits import Wait


@pytest.fixture(autouse=True)
def _short_loops_count(monkeypatch):
    monkeypatch.setattr(_calls, "_LEAST_SECONDS", 0.0)


# --- a device and a program that take exactly as long as they are said to ---


LOSS = Wait(Place("a.py", 1, "train"), "float(loss)")


class _Array:
    pass


class _Flat:
    """What the observer asks of a function."""

    info = None
    options = types.SimpleNamespace(donate="all")

    def function(self):
        return self


class Simulated:
    """A loop of a thousand steps, with a clock of its own. Times are in seconds."""

    DISPATCH = 50e-6

    def __init__(self, monkeypatch, is_timed=True, is_asynchronous=True):
        self.now = self.done = self.computed = 0.0
        self.calls = Calls()
        clock = types.SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr(_calls, "time", clock)
        monkeypatch.setattr(self.calls, "_wait_for", self.wait)
        self.is_timed, self.is_asynchronous = is_timed, is_asynchronous
        self.flats = []

    def wait(self, arrays):
        start = self.now
        if any(x is not None for x in arrays):
            self.now = max(self.now, self.done)
        return self.now - start

    def function(self, seconds):
        def jitted(*arrays):
            self.now += self.DISPATCH
            self.done = max(self.now, self.done) + seconds
            self.computed += seconds
            self.now = self.now if self.is_asynchronous else self.done
            return [_Array(), "handle"]

        flat = _Flat()
        self.flats.append(flat)
        specialization = types.SimpleNamespace(flat=flat)

        def timed(*arrays):
            return self.calls.call(jitted, specialization, (), arrays, 0, None)

        return timed if self.is_timed else jitted

    def read(self, arrays):
        start = self.now
        self.wait(arrays)
        self.calls.waited(self.now - start, self.now, LOSS)

    def run(self, device, python, reads, drops):
        """The seconds of the loop, and of what the device computed in it."""
        functions = [self.function(x) for x in device]
        out = [f() for f in functions]
        started, before = self.now, self.computed
        for i in range(1000):
            for f in functions:
                out = f(*([] if drops else out[:-1]))
            if reads and i % reads == 0:
                self.read(out)
            if drops:
                out = None
            self.now += python
        self.wait([0])
        return self.now - started, self.computed - before


LOOPS = {
    "device": ([1e-3], 0.0),
    "python": ([0.1e-3], 0.9e-3),
    "both": ([0.95e-3], 0.95e-3),
    "short calls": ([20e-6], 0.0),
    "two functions": ([0.2e-3, 0.7e-3], 0.3e-3),
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("reads", [0, 1, 10])  # one in so many steps, or none
@pytest.mark.parametrize("drops", [False, True])
def test_idle_is_what_the_device_did_not_compute(monkeypatch, loop, reads, drops):
    """And to look for it takes at most three hundredths of the loop's time."""
    plain, _ = Simulated(monkeypatch, is_timed=False).run(*loop, reads, drops)
    simulated = Simulated(monkeypatch)
    seconds, computed = simulated.run(*loop, reads, drops)
    use = simulated.calls.use()
    assert abs(use.busy / use.seconds - computed / seconds) < 0.05
    assert use.calls == 1001 * len(loop[0])
    assert seconds <= 1.03 * plain


@pytest.mark.parametrize("loop", [LOOPS[x] for x in LOOPS if x != "short calls"])
def test_what_fewer_reads_save_is_not_what_the_device_computes(monkeypatch, loop):
    simulated = Simulated(monkeypatch)
    reading, _ = simulated.run(*loop, 1, False)
    without, _ = Simulated(monkeypatch).run(*loop, 0, False)
    promised = simulated.calls.use().ahead
    saved = reading - without
    assert 0.8 * saved - 0.02 * reading < promised < 1.2 * saved + 0.02 * reading


def test_what_python_waits_for_outside_of_jit_is_no_idle_time(monkeypatch):
    simulated = Simulated(monkeypatch)
    f = simulated.function(1e-6)
    for _ in range(100):
        f()
        simulated.now += 1e-3
        simulated.calls.waited(1e-3, simulated.now, LOSS)
    use = simulated.calls.use()
    assert use.busy > 0.9 * use.seconds


def test_jax_may_compute_in_the_call_itself(monkeypatch):
    """As on a CPU with `jax_cpu_enable_async_dispatch=False`."""
    simulated = Simulated(monkeypatch, is_asynchronous=False)
    seconds, computed = simulated.run([2e-3], 1e-3, 0, False)
    use = simulated.calls.use()
    assert abs(use.busy / use.seconds - computed / seconds) < 0.05


# --- a real one ---


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
    "donation": lambda x: (donating(x), x.is_deleted()),
    "a chain of donations": lambda x: donating(donating(donating(x))),
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
def test_results_and_errors_are_the_same(monkeypatch, call):
    eqx.clear_caches()
    expected = outcome(call)
    eqx.clear_caches()
    monkeypatch.setattr(_calls, "_EVERY", 1)
    with Calls() as calls:
        assert outcome(call) == expected
    calls.use()


def test_one_array_is_kept():
    """The smallest result, which tells when the device is done, until the next call."""
    f = filter_jit(lambda x: (x.sum(), 2 * x))
    x = jnp.ones(1000)
    with Calls() as calls:
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
    assert calls.use().calls == 61


def test_only_calls_that_run_and_compile_nothing_count():
    inner = filter_jit(lambda x: x + 1)
    outer = filter_jit(lambda x: inner(x) * 2)
    with Calls() as calls:
        for n in (2, 3):
            for _ in range(10):
                outer(jnp.ones(n))
        for _ in range(10):
            jax.jit(lambda x: inner(x))(jnp.ones(2))
            jax.grad(lambda x: inner(x).sum())(jnp.ones(2))
    found = calls.use()
    assert found.calls == 2 * 9
    assert 0 < found.busy <= found.seconds < 5


def test_after_the_context_all_is_as_before():
    def hooked():
        return [
            *vars(type(jnp.ones(()))).values(),
            *vars(np).values(),
            _blocking.observer,
        ]

    before = hooked()
    with Calls() as calls:
        f = filter_jit(lambda x: x + 1)
        f(jnp.ones(2))
        changed = [x is not y for x, y in zip(before, hooked(), strict=True)]
        assert sum(changed) == 5
    assert [*map(id, hooked())] == [*map(id, before)]
    assert calls.use() is None
    assert f(jnp.ones(2)).tolist() == [2, 2]


# --- what is said ---


def use(busy=9.9, ahead=0.0, dispatch=0.0):
    return Use(10.0, 100, busy, 2.0, ahead, dispatch)


@pytest.mark.parametrize(
    ("found", "parts"),
    [
        (use(), ["never idle", "nothing in dispatch matters here"]),
        (use(busy=2.0, dispatch=5.0), ["idle for 80% of the 10 s", "took 5 s of it"]),
    ],
)
def test_whether_dispatch_matters_is_one_sentence(found, parts):
    text = str(found)
    assert all(part in text for part in parts)
    assert text.endswith(".") and ". " not in text
