"""Where the main thread is, by line, and operations outside of jit that are compiled.

Promise 36 of docs/reliability.md.
"""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import engine, filter_jit
from eqx_fastjit.insight import _report
from eqx_fastjit.insight._sampled import Samples
from eqx_fastjit.insight._watch import Watch


needs_ticks = pytest.mark.skipif(engine() == "python", reason="one engine")
pytestmark = pytest.mark.one_engine
step = filter_jit(lambda x, scale: x * scale)
SECONDS = 0.3


def repeated(f):
    """What a function's iterations spend their time on, for a moment."""
    f()  # so that all is compiled
    samples = Samples()
    assert samples.start()
    end = time.time() + SECONDS
    try:
        while time.time() < end:
            f()
    finally:
        samples.stop()
    return samples.found()


def operators():
    x = jnp.ones(3)
    return (x + 1.0) * x - x[0]


class Made(eqx.Module):
    w: jax.Array

    def __init__(self):
        self.w = jnp.ones(3) + jnp.ones(3) * jnp.sin(jnp.ones(3))


@needs_ticks
@pytest.mark.parametrize(
    ("f", "is_operation"),
    [
        (operators, True),
        (lambda: jnp.sin(jnp.cos(X)), True),
        (lambda: jax.tree.map(lambda a, b: 0.9 * a + b, [X] * 9, [X] * 9), True),
        (lambda: jax.random.split(KEY), True),
        (lambda: step(X, 2.0), False),
        (lambda: jnp.asarray(np.ones(3)), False),
        (lambda: Made(), False),
        (lambda: sum(range(1000)), False),
        (lambda: float(X[0]), True),
    ],
)
def test_only_operations_of_jax_are_said_to_be_some(f, is_operation):
    found = repeated(f)
    assert {spot.place.file for spot in found} == {__file__}
    known = sum(x.seconds for x in found if x.is_operation)
    assert (known > sum(x.seconds for x in found) / 3) == is_operation


X, LONG, KEY = jnp.ones(3), jnp.ones(17), jax.random.key(0)


@needs_ticks
def test_the_line_that_takes_longest_is_first():
    def spin():
        end = time.time() + 0.01
        while time.time() < end:
            pass

    def quick():
        return len("")

    def both():
        quick()
        spin()

    found = repeated(both)
    assert "spin" in found[0].place.function and not found[0].is_operation


@needs_ticks
def test_compiling_counts_as_compiling():
    """A compilation is in no line of the rest, whoever compiles."""
    x = jnp.ones(5)
    watch = Watch()
    watch.jax_imported()
    try:
        for n in range(8):
            for jit in (filter_jit, jax.jit):
                jit(lambda x, n=n: jnp.linalg.inv(jnp.outer(x, x) + n))(x)
    finally:
        watch.stop()
    compiling = sum(e.seconds for e in watch.events)
    assert sum(spot.seconds for spot in watch._samples.found()) < compiling / 2


@needs_ticks
def test_operations_in_a_loop_are_a_row_and_no_finding(monkeypatch):
    monkeypatch.setattr(_report, "LIMIT_SHARE", 0.2)
    x = jnp.sin(jnp.ones(3)) + X[::-1] * 0.5  # so that all is compiled
    watch = Watch()
    watch.jax_imported()
    end = time.time() + 2 * SECONDS
    while time.time() < end:
        x = jnp.sin(x) + x[::-1] * 0.5
    watch.stop()
    report = watch.report("program.py", 0)
    (row,) = [x for x in report.helps if x.attribute == "warm"]
    assert "test_sampled.py" in row.says and row.line.file == __file__
    assert not [x for x in report.findings if x.attribute == "warm"]
    assert any("x[::-1]" in text for text, _ in report.time[-1].lines)


def gate(x):
    return jnp.roll(jnp.sin(x), 1) * x


def measure(x):
    for _ in range(3):
        x = gate(x)
    return float(x[0])


def each(x):
    return jnp.stack([jnp.sin(v) * v for v in x])


def collate(x):
    return jnp.stack([jnp.array([n, 2.0]) for n in range(9)])


@needs_ticks
@pytest.mark.parametrize(
    ("f", "edit"),
    [
        (collate, "NumPy"),
        (gate, "jit `gate`"),
        (measure, "put them into a jitted function"),
        (each, "jax.vmap, in a jitted function"),
    ],
)
def test_what_is_to_be_jitted_is_the_outermost_function_that_calls_nothing_jitted(
    f, edit
):
    """As a whole, if it has no loop, which would be unrolled."""
    jax.clear_caches()
    watch = Watch()
    watch.jax_imported()
    f(step(X, 2.0))  # so that all is compiled
    end = time.time() + 2 * SECONDS
    while time.time() < end:
        f(step(X, 2.0))
    watch.stop()
    (row,) = [x for x in watch.report("a.py", 0).helps if "warm" in x.attribute]
    assert row.edit == edit and f"`{f.__name__}`" in row.what
    # What it compiles for that is a part of it, and so is what is left as one program.
    assert row.count and row.saves < row.seconds


@needs_ticks
def test_a_line_that_compiles_again_has_a_row_with_all_that_it_takes():
    jax.clear_caches()
    watch = Watch()
    watch.jax_imported()
    end = time.time() + 2 * SECONDS
    while time.time() < end:
        for n in range(1, 7):
            LONG[:n]
    watch.stop()
    report = watch.report("a.py", 0)
    (row,) = [x for x in report.findings if x.attribute == "results"]
    assert "that are compiled already took" in row.says and row.saves > SECONDS / 2
    assert not [x for x in report.helps if "warm" in x.attribute]


def test_without_the_core_nothing_is_sampled(monkeypatch):
    monkeypatch.setattr("eqx_fastjit.insight._sampled.engine_module", object)
    samples = Samples()
    assert not samples.start() and samples.found() == []
    samples.stop()
