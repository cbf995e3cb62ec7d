"""Regression tests: faults found in a twentieth adversarial review."""

import contextlib
import pickle
import typing

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
        install()
    own = eqx.filter_jit
    contexts = [contextlib.ExitStack() for _ in order]
    for context in contexts:
        context.enter_context(installed())
    for i in order:
        assert eqx.filter_jit is filter_jit
        contexts[i].close()
    assert eqx.filter_jit is own


@pytest.mark.one_engine
def test_a_context_in_which_it_was_uninstalled():
    own = eqx.filter_jit
    with installed():
        uninstall()
        with installed():
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
