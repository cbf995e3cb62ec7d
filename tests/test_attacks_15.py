"""Regression tests: faults found in a fifteenth adversarial review: users' programs."""

import dataclasses
import functools
import gc
import typing
import weakref

import attrs
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

from eqx_fastjit import _callables, filter_jit
from tests.traces import count_traces


X = np.arange(3.0, dtype=np.float32)


class Layer(eqx.Module):
    """Its `__init__` and its `__call__` have the same parameters."""

    w: jax.Array

    def __call__(self, w):
        return self.w * 10 + w


@dataclasses.dataclass(frozen=True)
class Scale:
    """The same, and no pytree."""

    w: typing.Any

    def __call__(self, w):
        return self.w * 10 + w


@pytest.mark.parametrize("cls", [Layer, Scale])
@pytest.mark.parametrize("class_first", [True, False])
def test_a_class_and_its_instances_are_wrapped(cls, class_first):
    def check_class():
        made = filter_jit(cls)(2)
        assert type(made) is cls
        assert made.w == 2

    def check_instance():
        assert np.array_equal(filter_jit(cls(2))(X), 20 + X)

    checks = [check_class, check_instance]
    for check in checks if class_first else reversed(checks):
        check()
    check_class()


class Pairs:
    """A flatten function that makes its children anew."""

    def __init__(self, pairs):
        self.pairs = pairs


jtu.register_pytree_node(
    Pairs, lambda x: (({*x.pairs},), None), lambda _, children: Pairs(children[0])
)


def test_an_unhashable_leaf_that_a_flatten_function_makes():
    with pytest.raises(ValueError, match=r"`y\[<flat index 0>\]` is a set"):
        filter_jit(lambda x, y: x)(X, Pairs([1]))


@functools.partial(
    jtu.register_dataclass, data_fields=["x", "n"], meta_fields=[], drop_fields=[]
)
@dataclasses.dataclass
class Checked:
    """Checks its parts, also in `tree_unflatten`."""

    x: typing.Any
    n: typing.Any

    def __post_init__(self):
        if self.n is None or self.x.ndim != 1:
            raise ValueError("not a checked one")


def test_results_whose_classes_check_their_statics():
    f, traces = count_traces(lambda x, n: [Checked(x, n)])
    for _ in range(2):
        (out,) = f(X, 3)
        assert np.array_equal(out.x, X)
        assert out.n == 3
    assert len(traces) == 1


def test_classes_that_check_their_arrays_are_lowered():
    f = filter_jit(lambda x: x.x * x.n)
    struct = Checked(jax.ShapeDtypeStruct((3,), jnp.float32), 2)
    assert f.eval_shape(struct).shape == (3,)
    assert np.array_equal(f.lower(struct).compile()(Checked(X, 2)), 2 * X)


def _loss(number):
    """A function that differs from others in its file alone."""
    namespace = {}
    source = "def loss(x):\n    return x.sum() if (x > 0).all() else x.min()\n"
    exec(compile(source, f"/losses/{number}.py", "exec"), namespace)
    return namespace["loss"]


@pytest.mark.parametrize("wrap", [eqx.filter_grad, eqx.Partial, lambda f: f])
def test_errors_name_the_function_of_this_wrapper(wrap):
    for number in range(2):
        with pytest.raises(jax.errors.TracerBoolConversionError) as info:
            filter_jit(wrap(_loss(number)))(X)
        if wrap is not eqx.filter_grad:  # whose tracers are not those of `jit`
            assert f"/losses/{number}.py" in str(info.value)


class Base(eqx.Module):
    def __call__(self, x):
        return x.sum() if (x > 0).all() else x.min()


class Inherits(Base):
    pass


def test_errors_name_a_call_method_that_is_inherited():
    with pytest.raises(jax.errors.TracerBoolConversionError) as info:
        filter_jit(Inherits())(X)
    assert f"__call__ at {__file__}" in str(info.value)


def test_wrappers_with_names_that_are_made_up_are_not_all_kept(monkeypatch):
    monkeypatch.setattr(_callables, "_MAX_FUNCTIONS", 4)
    functions = weakref.WeakSet()
    for number in range(20):

        def loss(x):
            return x.sum()

        loss.__qualname__ = f"loss_{number}"
        f = filter_jit(eqx.filter_grad(loss))
        assert np.array_equal(f(X), [1, 1, 1])
        functions.add(f._function)
    gc.collect()
    assert len(functions) <= 5


@pytest.mark.parametrize("donate", ["all", "all-except-first"])
def test_donation_does_not_warn_where_a_known_trace_is_lowered_again(donate):
    f, traces = count_traces(lambda n, x: jnp.sum(x > n), donate=donate)
    device = jax.devices()[0]
    for x in (jax.device_put(X, device), jnp.array(X), jax.device_put(X, device)):
        assert f(1, x) == 1  # warnings are errors
    assert len(traces) == 1


@pytest.mark.parametrize("first", [True, False])
def test_a_sharding_that_is_false(first):
    spec = jax.sharding.PartitionSpec
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("d",))
    x = jax.device_put(np.arange(4.0), jax.sharding.NamedSharding(mesh, spec("d")))

    def f(x):
        return x + 1

    with jax.set_mesh(mesh):
        for replicated in (first, not first, first):
            options = {"out_shardings": spec()} if replicated else {}
            out = filter_jit(f, **options)(x)
            assert out.sharding.is_fully_replicated == replicated


@dataclasses.dataclass
class Grid:
    points: np.ndarray


class Holder(eqx.Module):
    x: np.ndarray
    value: typing.Any = eqx.field(static=True)


def test_an_array_in_a_dataclass_in_a_static_field_is_named():
    f = filter_jit(lambda model: model.x)
    f(Holder(X, Grid(np.ones(3))))
    with pytest.raises(ValueError, match=r"static field `model\.value\.points`"):
        f(Holder(X, Grid(np.ones(3))))


class Incomparable:
    def __eq__(self, other):
        raise KeyError("compared")

    def __hash__(self):
        return 1


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_nothing_is_looked_up_without_jit():
    f, traces = count_traces(lambda model, x: (model.value, x))
    with jax.disable_jit():
        for value in (np.ones(3), np.zeros(3), Incomparable(), Incomparable()):
            assert f(Holder(X, value), X)[0] is value
        assert f.eval_shape(Holder(X, 1), X)[1].shape == (3,)
    assert len(traces) == 5
    value = np.full(3, 2)  # nor is it remembered
    for _ in range(2):
        assert np.array_equal(f(Holder(X, value), X)[0], value)
    assert len(traces) == 6


@attrs.define
class Config:
    """An array is compared in a way of its own."""

    rate: typing.Any
    grid: np.ndarray = attrs.field(eq=attrs.cmp_using(eq=np.array_equal))


@attrs.frozen
class FrozenConfig:
    """A field is compared in a way of its own, and there is a hash."""

    rate: typing.Any
    grid: typing.Any = attrs.field(eq=str)


@pytest.mark.parametrize("cls", [Config, FrozenConfig])
def test_fields_that_attrs_compares_in_a_way_of_their_own(cls):
    f, traces = count_traces(lambda x: (x.value.rate, float(x.value.grid.sum())))
    for _ in range(2):
        for rate, total in [(1, 2.0), (1.0, 2.0), (True, 2.0), (1, 4.0)]:
            holder = Holder(X, cls(rate, np.full(2, total / 2)))
            got, got_total = f(holder)
            assert (type(got), got, got_total) == (type(rate), rate, total)
    assert len(traces) == 4
