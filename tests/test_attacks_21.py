"""Regression tests: faults found in a twenty-first adversarial review: sequences."""

import gc
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from eqx_fastjit import _engine, _function, _record, filter_jit


class Listed(eqx.Module):
    w: jax.Array
    static: list = eqx.field(static=True)


def listed(static=None):
    return Listed(jnp.ones(()), [1] if static is None else static)


def passed(x, model):
    return x, model


@pytest.mark.parametrize("how", ["call", "trace"])
def test_a_compiled_call_of_a_trace_that_was_known(how, engine):
    # It refers to the statics of the call that was traced, not to those that it was
    # lowered for: it then returned [5].
    f, x = filter_jit(passed), jnp.ones(2)
    traced, lowered, other = listed(), listed(), listed()
    f(x, traced) if how == "call" else f.trace(x, traced)
    f(jnp.ones(3), other)
    compiled = f.lower(x, lowered).compile()
    other.static[0] = 5
    assert compiled(x, lowered)[1].static == [1]
    traced.static[0] = 5
    with pytest.raises(TypeError, match="a static list was changed since then"):
        compiled(x, lowered)
    assert f(x, lowered)[1].static == [1]


def test_statics_of_traces_that_jax_has_forgotten_are_freed(engine):
    # Each trace added its own to those that all later calls look at.
    class Kept(list):
        pass

    f = filter_jit(passed)
    compiled = f.lower(jnp.ones(3), listed(Kept([1]))).compile()
    kept = []
    for _ in range(4):
        model = listed(Kept([1]))
        kept.append(weakref.ref(model.static))
        f(jnp.ones(2), model)
        del model
        jax.clear_caches()
    gc.collect()
    assert [x() for x in kept[:-1]] == [None] * 3
    assert compiled(jnp.ones(3), listed(Kept([1])))[1].static == [1]


def calls_back(x, model):
    def call(y):
        return y * model.static[0]

    return jax.pure_callback(call, jax.eval_shape(lambda: x), x), model


@pytest.mark.parametrize("function", [passed, calls_back])
def test_a_trace_that_was_known_inside_of_another(function, engine):
    # The outer trace refers to the statics of the inner one. It then gave [5] for
    # objects that nobody had changed.
    inner = filter_jit(function)
    middle = filter_jit(lambda x, model: inner(x, model))
    outer = filter_jit(lambda x, model: middle(x, model))
    x, first, models = jnp.ones(2), listed(), [listed() for _ in range(4)]
    inner(x, first)
    middle(x, models[0])
    compiled = outer.lower(x, models[1]).compile()
    outer(x, models[1])
    first.static[0] = 5
    with pytest.raises(TypeError, match="a static list was changed since then"):
        compiled(x, models[1])
    for f in (outer, middle, outer):
        for model in models:
            y, out = f(x, model)
            assert out.static == [1]
            assert y.tolist() == [1, 1]


def test_traces_inside_of_another_are_not_made_again(engine):
    traces = []

    @filter_jit
    def layer(x, model):
        traces.append(model.static)
        return x + model.w

    @filter_jit
    def stack(x, models):
        traces.append("stack")
        for model in models:
            x = layer(x, model)
        return x

    layer(jnp.ones(2), listed())
    for _ in range(3):
        stack(jnp.ones(2), [listed() for _ in range(3)])
    assert traces == [[1], "stack"]


def test_an_interrupt_between_two_calls_leaves_nothing_behind(engine, monkeypatch):
    def interrupt(self, *_):
        raise KeyboardInterrupt

    inner = filter_jit(passed)
    outer = filter_jit(lambda x, model: inner(x, model))
    with monkeypatch.context() as patch:
        patch.setattr(_function.Function, "tell_outer", interrupt)
        with pytest.raises(KeyboardInterrupt):
            outer(jnp.ones(2), listed())
    assert not _record.is_busy()
    assert _engine.innermost_call() is None
    assert outer(jnp.ones(2), listed())[1].static == [1]
