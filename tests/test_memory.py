"""Memory that calls leave behind. For when caches let go, see `test_lifetimes.py`."""

import functools
import gc
import json
import os
import subprocess
import sys
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from eqx_fastjit import _function, filter_jit


def _measure(engine, *args):
    out = subprocess.run(
        [sys.executable, "-m", "tests.stress_memory", *args],
        env=dict(os.environ, EQX_FASTJIT_ENGINE=engine),
        capture_output=True,
        text=True,
        cwd=os.path.dirname(os.path.dirname(__file__)),
        timeout=300,
    )
    assert out.returncode == 0, out.stderr
    reports = map(json.loads, out.stdout.splitlines())
    return {report["kind"]: report for report in reports}


@functools.cache
def _short_forms(engine):
    """Short forms of the runs that the docstring of `stress_memory` describes."""
    return _measure(
        engine,
        *("calls=50000", "outputs=2000", "wrapped=10000", "lambdas=200"),
        *("statics=400", "classes=60", "--programs=40"),
    )


@pytest.fixture
def ours(engine):
    return _short_forms(engine)


_MB = 1_000_000


@pytest.mark.parametrize(
    ("kind", "each", "resident"),
    [
        ("calls", 1, 4 * _MB),
        # Each output has 400 kB.
        ("outputs", 100, 40 * _MB),
        ("wrapped", 10, 4 * _MB),
        # The rest are entries in JAX's tables, which keep 4,096 of them.
        ("lambdas", 15_000, 8 * _MB),
        # 400 statics, of which 40 programs are kept, each with 1.4 MB.
        ("statics", 15_000, 30 * _MB),
        ("classes", 80_000, 20 * _MB),
    ],
)
def test_memory_is_bounded(kind, each, resident, ours):
    assert ours[kind]["python_bytes_each"] < each
    assert ours[kind]["resident_growth"] < resident


def test_module_classes_cost_no_more_than_with_equinox(ours, engine):
    """JAX never releases a registered class, so Equinox has the same cost."""
    theirs = _measure(engine, "classes=60", "--jit=equinox")["classes"]
    assert ours["classes"]["python_bytes_each"] < 2 * theirs["python_bytes_each"]
    assert ours["classes"]["resident_growth"] < 2 * theirs["resident_growth"]


class Model(eqx.Module):
    w: jax.Array
    tag: object = eqx.field(static=True)


class Tag:
    """Compared by identity, and weakly referenceable."""


@pytest.fixture
def without_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("donate", ["none", "all"])
def test_arguments_and_results_die_without_the_collector(donate, without_collector):
    f = filter_jit(lambda m, x, n: (Model(m.w + x, m.tag), x * n), donate=donate)
    tag = Tag()

    def call():
        m, x = Model(jnp.ones(1000), tag), jnp.ones(1000)
        refs = [weakref.ref(m), weakref.ref(m.w), weakref.ref(x)]
        out = f(m, x, 2.0)
        assert m.w.is_deleted() == (donate == "all")
        return [*refs, weakref.ref(out[0]), weakref.ref(out[0].w), weakref.ref(out[1])]

    for _ in range(40):  # the first call, the second, and warm calls
        assert [r() for r in call()] == [None] * 6


def test_a_failed_call_lets_go_of_its_arguments(without_collector):
    f = filter_jit(lambda x: eqx.error_if(x, x < 0, "negative"))

    def call():
        x = -jnp.ones(())
        with pytest.raises(eqx.EquinoxRuntimeError, match="negative"):
            f(x)
        return weakref.ref(x)

    f(jnp.ones(()))
    refs = [call() for _ in range(5)]
    gc.collect()  # tracebacks keep frames alive
    assert [r() for r in refs] == [None] * 5


def test_no_cycle_of_ours_is_left(without_collector):
    f = filter_jit(lambda m, x, n: (m, x * n, {"n": n}))
    method = filter_jit(lambda m, x: m.w * x)
    models = [Model(jnp.ones(2), i) for i in range(3)]
    x = jnp.ones(2)

    def calls(n):
        for _ in range(n):
            for m in models:
                f(m, x, 2.0), f(m, x, n=3), method(m, x), filter_jit(method)(m, x)

    calls(40)
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        calls(300)
        gc.collect()
        left = list(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert left == []


def test_buffers_are_freed():
    f = filter_jit(lambda x: x + 1, donate="all")
    g = filter_jit(lambda x: (x + 1, "static"))
    x = jnp.ones(1000)
    for _ in range(20):
        x = f(g(x)[0])
    gc.collect()
    before = len(jax.live_arrays())
    for _ in range(200):
        x = f(g(x)[0])
    assert len(jax.live_arrays()) <= before


def test_programs_beyond_the_limit_are_forgotten(monkeypatch):
    monkeypatch.setattr(_function, "_MAX_SPECIALIZATIONS", 8)
    traces = []

    class Tagged(eqx.Module):
        w: jax.Array
        tag: object = eqx.field(static=True)

    @filter_jit
    def f(m, n):
        traces.append(n)
        return m.w + m.tag, n

    for i in range(30):
        out, n = f(Tagged(jnp.array(1.0), i), "n")
        assert (float(out), n) == (1.0 + i, "n")
        assert f._function.n_specializations() <= 8
        assert len(f._function.static_arrays) <= 8
    assert len(traces) == 30
    # The specializations that were kept need no trace.
    for _ in range(2):
        for i in (28, 29):
            assert f(Tagged(jnp.array(1.0), i), "n")[0] == 1.0 + i
    assert len(traces) == 30
    # Those that were evicted are traced again, with the right result.
    assert f(Tagged(jnp.array(1.0), 0), "n")[0] == 1
    assert len(traces) == 31


def test_a_quarter_of_the_programs_is_forgotten_at_a_time(monkeypatch):
    monkeypatch.setattr(_function, "_MAX_SPECIALIZATIONS", 16)
    f = filter_jit(lambda n: n)
    kept = []
    for i in range(22):
        f(i)
        kept.append(f._function.n_specializations())
    assert kept == [*range(1, 17), *range(12, 17), 12]


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_arrays_in_static_fields_are_forgotten_with_their_programs(monkeypatch):
    monkeypatch.setattr(_function, "_MAX_SPECIALIZATIONS", 8)
    f = filter_jit(lambda m: m.w + m.tag.sum())
    for i in range(30):
        tag = jnp.ones(i + 2)
        assert f(Model(jnp.array(1.0), tag)) == i + 3
    assert len(f._function.static_arrays) <= 8
