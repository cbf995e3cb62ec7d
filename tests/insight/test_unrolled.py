"""The doctor is told of unrolled loops in what takes long to compile."""

import jax
import jax.numpy as jnp
import pytest

from eqx_fastjit import _events
from eqx_fastjit.insight import _loops
from tests.support.traces import count_traces


def unrolled(x, key):
    for _ in range(20):
        x = jnp.sin(x) + 1.0
    return x + jax.random.normal(key, x.shape)


def loops_in(f, *args):
    """What is found while a function is called, and how often it is traced."""
    found = []

    def look(event):
        found.append(_loops.unrolled_loop(event))

    jitted, traces = count_traces(f)
    _events.observers.append(look)
    try:
        jitted(*args)
    finally:
        _events.observers.remove(look)
    assert len(traces) == 1
    return found


@pytest.mark.parametrize("key", [jax.random.key, jax.random.PRNGKey])
def test_an_unrolled_loop_is_told_and_nothing_is_traced_for_it(key, monkeypatch):
    monkeypatch.setattr(_loops, "_LEAST_SECONDS", 0.0)  # however quickly it compiles
    (found,) = loops_in(unrolled, jnp.ones(2), key(0))
    assert (found.line.function, found.line.file) == ("unrolled", __file__)
    assert "20 iterations are alike, and have 40 of the" in found.says
    assert found.seconds > 0


def test_what_compiles_quickly_is_not_looked_through(monkeypatch):
    monkeypatch.setattr(_loops, "_LEAST_SECONDS", 1e6)
    assert loops_in(unrolled, jnp.ones(2), jax.random.key(0)) == [None]
