"""Regression tests: faults found in a second adversarial review of the engine."""

import array
import collections
import dataclasses
import typing

import equinox as eqx
import jax.numpy as jnp
import pytest

from eqx_fastjit import filter_jit


class _Holder(eqx.Module):
    x: typing.Any
    static: typing.Any = eqx.field(static=True)


class _One:
    n = 1


class _Two:
    n = 2


class _OneByValue:
    n = 1

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 5


class _TwoByValue(_OneByValue):
    n = 2


@pytest.mark.parametrize("classes", [(_One, _Two), (_OneByValue, _TwoByValue)])
def test_a_static_that_is_given_another_class(classes):
    f = filter_jit(lambda x, static: x * static.n)
    g = filter_jit(lambda m: m.x * m.static.n)
    static = classes[0]()
    for cls in (*classes, *classes):
        static.__class__ = cls
        assert f(jnp.ones(()), static) == cls.n
        assert g(_Holder(jnp.ones(()), static)) == cls.n


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda t: array.array(t, [1]), lambda a: a.append(2)),
        (lambda t: collections.UserDict(a={"i": 1, "f": 1.0}[t]), lambda d: d.clear()),
        (lambda t: collections.UserList([t == "i"]), lambda x: x.append([])),
        (
            lambda t: collections.ChainMap({1 if t == "i" else True: 2}),
            lambda c: c.pop(1),
        ),
    ],
)
def test_containers_that_are_equal_to_others_of_another_type(make, change):
    traces = []

    @filter_jit
    def f(m):
        traces.append(None)
        return m.x, repr(m.static)

    for kind in ("i", "f", "i", "f"):
        assert f(_Holder(jnp.ones(()), make(kind)))[1] == repr(make(kind))
    assert len(traces) == 2
    static = make("i")
    f(_Holder(jnp.ones(()), static))
    change(static)
    assert f(_Holder(jnp.ones(()), static))[1] == repr(static)


@dataclasses.dataclass
class _Lazy:
    made: typing.Any = dataclasses.field(init=False)


@dataclasses.dataclass(slots=True)
class _LazySlots:
    made: typing.Any = dataclasses.field(init=False)


@dataclasses.dataclass(eq=False)
class _LazyWithItsEq:
    made: typing.Any = dataclasses.field(init=False)

    def __eq__(self, other):
        return self.made == other.made


@pytest.mark.parametrize("cls", [_Lazy, _LazySlots, _LazyWithItsEq])
def test_an_attribute_that_is_not_there_is_not_none(cls):
    f = filter_jit(lambda m: m.x * (2 if hasattr(m.static, "made") else 1))
    for n in (1, 2, 1, 2):
        static = cls()
        if n == 2:
            static.made = None
        assert f(_Holder(jnp.ones(()), static)) == n
