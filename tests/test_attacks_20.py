"""Regression tests: faults found in a twentieth adversarial review."""

import contextlib
import gc
import pickle
import typing
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import pytest

from eqx_fastjit import filter_jit, install, installed, uninstall


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
@pytest.mark.one_engine
def test_contexts_that_end_in_another_order(order, before):
    # As threads and tasks do. One then had Equinox's own in the midst of its context;
    # or ours was left for ever.
    if before:
        install(asynchronous=True)
    own = eqx.filter_jit
    contexts = [contextlib.ExitStack() for _ in order]
    for context in contexts:
        context.enter_context(installed(asynchronous=True))
    for i in order:
        assert eqx.filter_jit is filter_jit
        contexts[i].close()
    assert eqx.filter_jit is own


@pytest.mark.one_engine
def test_a_context_in_which_it_was_uninstalled():
    own = eqx.filter_jit
    with installed():
        uninstall()
        with installed(asynchronous=True):
            assert eqx.filter_jit is filter_jit
        assert eqx.filter_jit is own
    assert eqx.filter_jit is own


@filter_jit
def double(x):
    return 2 * x


class Layer(eqx.Module):
    w: jax.Array
    act: typing.Any

    @filter_jit
    def __call__(self, x):
        return self.act(self.w * x)


def test_pickling_a_jitted_function_that_was_built_again(engine):
    # In a model after a step, say. The one that has not been was pickled.
    model = Layer(jnp.ones(3), double)
    step = filter_jit(lambda m: m)
    for each in (model, step(model), jtu.tree_map(lambda x: x, model)):
        again = pickle.loads(pickle.dumps(each))
        assert again.act is double
        assert again(1.0).tolist() == [2, 2, 2]
    assert pickle.loads(pickle.dumps(filter_jit(double)))(3) == 6
    bound = pickle.loads(pickle.dumps(filter_jit(model.__call__)))
    assert bound(1.0).tolist() == [2, 2, 2]
    with pytest.raises(pickle.PicklingError):  # one with other options is another
        pickle.dumps(filter_jit(double.__wrapped__, donate="all"))


class Listed(eqx.Module):
    w: jax.Array
    static: list = eqx.field(static=True)


def checked(x, model):
    return eqx.error_if(x, x.min() < 0, "negative"), model


def _run(f, x, model):
    f(x, model)


def _run_and_fail(f, x, model):
    with pytest.raises(eqx.EquinoxRuntimeError):
        f(x - 10, model)


def _lower(f, x, model):
    f.lower(x, model)


def _eval_shape(f, x, model):
    f.eval_shape(x, model)


def _lower_struct(f, x, model):
    f.lower(jax.ShapeDtypeStruct(x.shape, x.dtype), model)


def _transform(f, x, model):
    with pytest.raises(eqx.EquinoxRuntimeError):
        jax.grad(lambda x: f(x, model)[0].sum())(x - 10)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    "trace", [_run, _run_and_fail, _lower, _lower_struct, _eval_shape, _transform]
)
def test_a_static_is_changed_that_a_trace_refers_to(trace, known, engine):
    # The trace of a call that raised, or of one that was only lowered, was used for
    # other objects after its own had been changed.
    f = filter_jit(checked)
    models = [Listed(jnp.ones(()), [1]) for _ in range(3)]
    if known:
        f(jnp.ones(2), models[0])
    trace(f, jnp.ones(3), models[1])
    models[1].static[0] = 5
    _, out = f(jnp.ones(3), models[2])
    assert out.static == [1]


def test_traces_that_raise_keep_no_statics(engine):
    class Kept(list):
        pass

    def f(x, model):
        if x.ndim == 2:
            raise KeyError
        return x

    jitted = filter_jit(f)
    jitted(jnp.ones(2), Listed(jnp.ones(()), Kept([1])))
    statics = [Kept([1]) for _ in range(3)]
    kept = [weakref.ref(x) for x in statics]
    for static in statics:
        with pytest.raises(KeyError):
            jitted(jnp.ones((2, 2)), Listed(jnp.ones(()), static))
    del static, statics
    gc.collect()
    assert [x() for x in kept] == [None] * 3
