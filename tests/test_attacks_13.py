"""Regression tests: faults found in a thirteenth adversarial review: statics."""

import collections
import typing

import equinox as eqx
import jax.tree_util as jtu
import numpy as np
import pytest

from tests.traces import count_traces


pytestmark = pytest.mark.filterwarnings(
    "ignore:A JAX array is being set as static",
    "ignore:Python iterable type",
)


class Holder(eqx.Module):
    """A static field."""

    x: np.ndarray
    value: typing.Any = eqx.field(static=True)


def _holder(value):
    return Holder(np.ones(3), value)


@pytest.mark.parametrize("cls", [dict, collections.OrderedDict])
@pytest.mark.parametrize("name", ["keys", "values", "items"])
def test_views_of_dictionaries(cls, name):
    """`==` does not look at their order; they change with the dictionary."""
    f, traces = count_traces(lambda h: repr([*h.value]))
    pairs = [(1, 1), (2, 1.0)], [(2, 1.0), (1, 1)], [(1, 1.0), (2, 1)], [(True, 1)]
    seen = set()
    for _ in range(2):
        for given in pairs:
            view = getattr(cls(given), name)()
            seen.add(repr([*view]))
            assert f(_holder(view)) == repr([*view])
    assert len(traces) == len(seen)
    changed = cls(a=1)
    view = getattr(changed, name)()
    for value in (1, 2):
        changed["b"] = value
        assert f(_holder(view)) == repr([*view])
        assert f(_holder((view,))) == repr([view])


class Length(np.float64):
    """A number with a unit."""


class Name(np.str_):
    """A name with a slot."""

    __slots__ = ("unit",)


class Long(np.longdouble):
    """A number whose bytes mean nothing."""


def _with_unit(cls, value, unit):
    out = cls(value)
    if unit is not None:
        out.unit = unit
    return out


@pytest.mark.parametrize("cls, value", [(Length, 1.0), (Name, "a"), (Long, 1)])
def test_static_scalars_of_numpy_with_a_unit(cls, value):
    f, traces = count_traces(lambda h: repr(getattr(h.value, "unit", None)))
    for _ in range(2):
        for unit in (None, "m", "s", 1, 1.0):
            assert f(_holder(_with_unit(cls, value, unit))) == repr(unit)
    assert len(traces) == 5
    changed = _with_unit(cls, value, "m")
    f(_holder(changed))
    changed.unit = "km"
    assert f(_holder(changed)) == "'km'"


def test_paths_as_statics():
    """A key compares as what it holds: 1 as 1.0."""
    f, traces = count_traces(lambda h: repr(h.value))
    for key in (1, 1.0, True, 0.0, -0.0, "a", 1):
        (path, _), *_ = jtu.tree_flatten_with_path({key: 0})[0]
        assert f(_holder(path)) == repr(path)
    assert len(traces) == 6


class Below(eqx.Module):
    """A child of a static Module."""

    value: typing.Any


def _ordered(*pairs):
    return collections.OrderedDict(pairs)


def _defaulting(*pairs):
    return collections.defaultdict(list, pairs)


@pytest.mark.parametrize("make", [lambda *x: dict(x), _ordered, _defaulting])
def test_the_order_of_a_dictionary_in_a_static_module(make):
    """JAX sorts those that are traced; this one is seen as it is."""
    f, traces = count_traces(lambda h: repr(h.value.value))
    for _ in range(2):
        for pairs in (
            [("a", 1), ("b", 2)],
            [("b", 2), ("a", 1)],
            [("a", 1.0), ("b", 2)],
        ):
            assert f(_holder(Below(make(*pairs)))) == repr(make(*pairs))
    assert len(traces) == 3
    changed = make(("a", 1), ("b", 2))
    f(_holder(Below(changed)))
    changed["a"] = changed.pop("a")
    assert f(_holder(Below(changed))) == repr(changed)


def test_the_factory_of_a_dictionary_in_a_static_module():
    f, traces = count_traces(lambda h: repr(h.value.value))
    for factory in (None, int, list, int, None):
        value = collections.defaultdict(factory, b=1, a=2)
        assert f(_holder(Below(value))) == repr(value)
    assert len(traces) == 3


@pytest.mark.parametrize("make", [lambda x: x, lambda x: (x,), Below])
def test_the_masked_constant_of_numpy(make):
    """It has no value to be filled with."""
    f, traces = count_traces(lambda h: h.x)
    for _ in range(2):
        f(_holder(make(np.ma.masked)))
    assert len(traces) == 1
