"""Jitted methods: descriptors, `BoundJit` as a pytree, instances as arguments.

They bind like functions, and another instance does not retrace.
"""

import functools
import typing

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import pytest

from eqx_fastjit import BoundJit, filter_jit, JitWrapped


X = jnp.arange(1.0, 3.0)


class Scaled(eqx.Module):
    """Counts the traces of its method."""

    w: jax.Array
    n: int = eqx.field(static=True, default=2)
    traces: typing.ClassVar[list] = []

    @filter_jit
    def scale(self, x, by=1):
        self.traces.append(None)
        return self.w * x * self.n * by


@pytest.fixture
def traces():
    Scaled.traces.clear()
    return Scaled.traces


def test_spellings_of_a_method_call(traces):
    """Bound, unbound, by keyword and with a default: one trace."""
    model = Scaled(X)
    calls = [
        model.scale(X),
        model.scale(x=X),
        model.scale(X, 1),
        model.scale(X, by=1),
        Scaled.scale(model, X),
        Scaled.scale(self=model, x=X),
    ]
    assert all(out.tolist() == [2, 8] for out in calls)
    assert len(traces) == 1


def test_types_of_methods():
    """On the class it is a `JitWrapped`, on an instance a `BoundJit`: a partial."""
    bound = Scaled(X).scale
    assert type(Scaled.scale) is JitWrapped
    assert type(bound) is BoundJit and isinstance(bound, functools.partial)
    assert bound.func == Scaled.scale
    assert eqx.tree_equal(bound.args[0], Scaled(X)) and bound.keywords == {}


def test_paths_of_a_bound_method_are_named():
    """Key paths of the pytree are the names of attributes."""
    paths = [jtu.keystr(path) for path, _ in jtu.tree_leaves_with_path(Scaled(X).scale)]
    assert ".args[0].w" in paths


def test_equality_of_bound_methods():
    """Methods of equal instances are equal, with the same hash where there is one."""
    one, same, other = Scaled(X), Scaled(X), Scaled(X + 1)
    assert one.scale == one.scale == same.scale
    assert one.scale != other.scale
    assert one.scale != 3


def test_stages_of_a_bound_method():
    """`trace`, `lower`, `eval_shape` and `clear_cache` exist on bound methods."""
    model = Scaled(X)
    assert model.scale.eval_shape(X).shape == (2,)
    assert model.scale.trace(X).jaxpr.eqns
    assert model.scale.lower(X).compile()(X).tolist() == [2, 8]
    assert Scaled.scale.lower(model, X, 2).compile()(model, X, 2).tolist() == [4, 16]
    model.scale.clear_cache()
    assert model.scale(X).tolist() == [2, 8]
