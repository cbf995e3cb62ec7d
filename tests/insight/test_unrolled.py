"""The doctor is told of unrolled loops in what takes long to compile."""

import jax
import jax.numpy as jnp
import pytest

from eqx_fastjit import _events, filter_jit
from eqx_fastjit.insight import _unrolled
from eqx_fastjit.insight._report import make_report
from eqx_fastjit.insight._unrolled import UnrolledLoops
from tests.support.traces import count_traces


@pytest.fixture
def loops(monkeypatch):
    """Notes loops, however quickly a function compiles."""
    monkeypatch.setattr(_unrolled, "_SECONDS", 0.0)
    found = UnrolledLoops()
    _events.observers.append(found.on_event)
    yield found
    _events.observers.remove(found.on_event)


def unrolled(x, key):
    for _ in range(20):
        x = jnp.sin(x) + 1.0
    return x + jax.random.normal(key, x.shape)


@pytest.mark.parametrize("key", [jax.random.key, jax.random.PRNGKey])
def test_an_unrolled_loop_is_told_and_nothing_is_traced_for_it(loops, key):
    f, traces = count_traces(unrolled)
    f(jnp.ones(2), key(0))
    assert len(traces) == 1
    (found,) = loops.found()
    assert found.function.name == "unrolled"
    assert (found.loop.iterations, found.loop.equations) == (20, 40)
    assert found.loop.place.file == __file__
    assert 0 < found.saves < found.seconds
    assert "`jax.lax.scan`" in found.hint


def test_a_small_part_of_a_function_is_not_told(loops):
    @filter_jit
    def f(x):
        for _ in range(3):
            x = x + 1.0
        return jnp.sin(jnp.cos(jnp.tan(jnp.exp(jnp.log(-x)))))

    f(jnp.ones(2))
    assert loops.found() == []


def test_what_compiles_quickly_is_not_looked_through():
    loops = UnrolledLoops()
    _events.observers.append(loops.on_event)
    try:
        filter_jit(lambda x: unrolled(x, jax.random.key(0)))(jnp.ones(()))
    finally:
        _events.observers.remove(loops.on_event)
    assert all(found.seconds >= 1 for found in loops.found())


def test_the_report_says_so_under_what_would_help(loops):
    filter_jit(unrolled)(jnp.ones(2), jax.random.key(0))
    report = make_report(
        "a.py", [], started=0.0, seconds=1.0, exit_code=0, unrolled=loops.found()
    )
    (item,) = report.helps
    assert item.name == "scan"
    assert item.says.startswith("`unrolled` took ")
    assert "test_unrolled.py" in item.fix
