"""Pickling by name, by value with `cloudpickle`, copies, and worker processes.

Jitted functions can be pickled and copied, and work in forked and spawned processes.
"""

import copy
import pickle
import typing

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import pytest

from eqx_fastjit import filter_jit
from tests.support.programs import run_program


X = jnp.ones(2)


def _double(x):
    return x * 2


named = filter_jit(_double, donate="all-except-first")


@filter_jit
def decorated(x):
    return x * 2


class Layer(eqx.Module):
    w: jax.Array
    act: typing.Any = decorated

    @filter_jit
    def method(self, x):
        return self.act(self.w * x)


def test_decorated_functions_are_pickled_by_name():
    """Like any function: what comes back is the function itself."""
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert pickle.loads(pickle.dumps(Layer.method)) is Layer.method
    assert copy.copy(decorated) is copy.deepcopy(decorated) is decorated


def test_wrapped_functions_are_pickled_with_their_options():
    """A function that has another name than its wrapper is pickled with it."""
    again = pickle.loads(pickle.dumps(named))
    assert again == named and again(X).tolist() == [2, 2]
    assert pickle.loads(pickle.dumps(filter_jit(decorated)))(3) == 6
    model = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    wrapped = pickle.loads(pickle.dumps(filter_jit(model)))
    assert eqx.tree_equal(wrapped.__wrapped__, model)


def test_what_has_no_name_cannot_be_pickled():
    """A lambda is refused, as it is without a wrapper."""
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(filter_jit(lambda x: x))
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(filter_jit(decorated.__wrapped__, donate="all"))


def test_models_and_their_methods():
    """A model that holds jitted functions is pickled, also after a step."""
    model = Layer(X)
    step = filter_jit(lambda m: m)
    for each in (model, step(model), jtu.tree_map(lambda x: x, model)):
        again = pickle.loads(pickle.dumps(each))
        assert again.act is decorated
        assert again.method(X).tolist() == [2, 2]
    bound = pickle.loads(pickle.dumps(model.method))
    assert bound(X).tolist() == [2, 2]


def test_copies():
    """Copies of wrapped Modules and bound methods are equal and can be called."""
    model = filter_jit(eqx.nn.Linear(2, 2, key=jax.random.key(0)))
    for again in (copy.copy(model), copy.deepcopy(model)):
        assert eqx.tree_equal(again, model)
        assert again(X).tolist() == model(X).tolist()
    bound = Layer(X).method
    assert copy.deepcopy(bound)(X).tolist() == [2, 2]


def test_functions_of_the_main_program_with_cloudpickle(tmp_path):
    """They are pickled by value, because a worker cannot import them."""
    path = tmp_path / "pickle"
    run_program("pickled.py", "dump", path)
    run_program("pickled.py", "load", path)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_worker_processes(method):
    """Workers can be spawned, or forked by a process that has not used JAX."""
    run_program("workers.py", method)
