"""Jitted methods: descriptors, `BoundJit` as a pytree, instances as arguments.

Promise 7 of docs/reliability.md.
"""

import abc
import dataclasses
import functools
import typing

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
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


def test_new_instances_do_not_retrace(traces):
    """An instance's arrays are traced, and its other fields are static."""
    for w in (1.0, 2.0, 3.0):
        assert Scaled(jnp.full(2, w)).scale(X).tolist() == [2 * w, 4 * w]
    assert len(traces) == 1
    assert Scaled(X, 3).scale(X).tolist() == [3, 12]
    assert len(traces) == 2


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


def test_a_bound_method_is_a_pytree(traces):
    """Its leaves are the instance's: it can be mapped, partitioned, differentiated."""
    bound = Scaled(X).scale
    leaves = [x for x in jtu.tree_leaves(bound) if eqx.is_array(x)]
    assert len(leaves) == 1
    doubled = jtu.tree_map(lambda x: x * 2 if eqx.is_array(x) else x, bound)
    assert doubled(X).tolist() == [4, 16]
    replaced = eqx.tree_at(lambda b: b.args[0].w, bound, X * 3)
    assert replaced(X).tolist() == [6, 24]
    arrays, rest = eqx.partition(bound, eqx.is_array)
    assert eqx.combine(arrays, rest)(X).tolist() == [2, 8]
    grads = eqx.filter_grad(lambda b: b(X).sum())(bound)
    assert grads.args[0].w.tolist() == [2, 4]
    assert len(traces) <= 2


def test_a_bound_method_as_an_argument(traces):
    """A jitted function that is passed a bound method traces the instance's arrays."""
    calls = []

    @filter_jit
    def call(f, x):
        calls.append(None)
        return f(x)

    for w in (1.0, 2.0):
        assert call(Scaled(jnp.full(2, w)).scale, X).tolist() == [2 * w, 4 * w]
    assert len(calls) == 1


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


def test_the_call_method_can_be_jitted():
    """`__call__` can be decorated, in a class and in its subclass."""

    class Model(eqx.Module):
        w: jax.Array

        @filter_jit
        def __call__(self, x):
            return self.w * x

    class Shifted(Model):
        b: float = 1.0

        @filter_jit
        def __call__(self, x):
            return super().__call__(x) + self.b

    assert Model(X)(X).tolist() == [1, 4]
    assert Shifted(X)(X).tolist() == [2, 5]
    np.testing.assert_array_equal(jax.vmap(Model(X))(X[None]), X[None] ** 2)


def test_inherited_and_abstract_methods():
    """A jitted method calls the overriding one of its instance's class."""

    class Base(eqx.Module):
        @abc.abstractmethod
        def f(self, x): ...

        @filter_jit
        def g(self, x):
            return self.f(x) + 1

    class Doubles(Base):
        def f(self, x):
            return x * 2

    class Squares(Base):
        @filter_jit
        def f(self, x):
            return x**2

    with pytest.raises(TypeError):
        Base()
    assert Doubles().g(X).tolist() == [3, 5]
    assert Squares().g(X).tolist() == [2, 5]


def test_static_and_class_methods():
    """`staticmethod` and `classmethod` around a jitted function."""

    class Model(eqx.Module):
        @staticmethod
        @filter_jit
        def double(x):
            return x * 2

        @classmethod
        @filter_jit
        def name(cls, x):
            return x, cls.__name__

    assert Model.double(X).tolist() == Model().double(X).tolist() == [2, 4]
    assert Model.name(X)[1] == Model().name(X)[1] == "Model"


def test_methods_of_plain_classes():
    """Instances that are no pytrees are static: by identity, or by what they hold."""
    traces = []

    class Plain:
        def __init__(self, n):
            self.n = n

        @filter_jit
        def f(self, x):
            traces.append(None)
            return x * self.n

    @dataclasses.dataclass(frozen=True)
    class Frozen(Plain):
        n: int

    plain = Plain(2)
    assert plain.f(X).tolist() == plain.f(X).tolist() == Plain(2).f(X).tolist()
    assert len(traces) == 2
    for n in (2, 3, 2):
        assert Frozen(n).f(X).tolist() == (X * n).tolist()
    assert len(traces) == 4


def test_a_module_that_keeps_a_jitted_method():
    """A jitted bound method in a field of its own instance can be called and mapped."""

    class Model(eqx.Module):
        w: jax.Array
        step: typing.Callable

        def __init__(self, w):
            self.w = w
            self.step = filter_jit(self.add)

        def add(self, x):
            return x + self.w

    model = jtu.tree_map(lambda x: x * 2 if eqx.is_array(x) else x, Model(X))
    assert model.step(X).tolist() == [3, 6]


def test_donation_of_self():
    """`donate` counts the instance as the first argument."""

    class Model(eqx.Module):
        w: jax.Array

        @filter_jit(donate="all")
        def all(self, x):
            return Model(self.w + x), x + 1

        @filter_jit(donate="all-except-first")
        def rest(self, x):
            return Model(self.w + x), x + 1

    for name, expected in (("all", [True, True]), ("rest", [False, True])) * 2:
        model, x = Model(jnp.ones(2)), jnp.ones(2)
        getattr(model, name)(x)
        assert [model.w.is_deleted(), x.is_deleted()] == expected
