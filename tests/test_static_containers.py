"""Subclasses of containers, slots, wrappers and arrays, as statics."""

import collections
import dataclasses
import functools
import typing

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.traces import count_traces


X = jnp.ones(())


class _Holder(eqx.Module):
    static: typing.Any = eqx.field(static=True)


class _Tuple(tuple):
    pass


class _List(list):
    pass


class _ListWithSlots(list):
    __slots__ = ("a",)


class _Dict(dict):
    __getattr__ = dict.__getitem__

    def items(self):
        raise AssertionError("read through an override")


class _Point(typing.NamedTuple):
    x: int
    y: int


class _NamedPoint(_Point):
    pass


def _with_attributes(x, **attributes):
    for name, value in attributes.items():
        object.__setattr__(x, name, value)
    return x


def _traces_of(*statics):
    f, traces = count_traces(lambda m, x: x)
    out = []
    for static in statics:
        f(_Holder(static), X)
        out.append(len(traces))
    return out


SAME = {
    "tuple": lambda: _Tuple((1, "a")),
    "list": lambda: _List([1, [2.0]]),
    "slots": lambda: _ListWithSlots([1]),
    "dict": lambda: _Dict(a=1, b=_Dict(c=[2])),
    "counter": lambda: collections.Counter("aab"),
    "named": lambda: _NamedPoint(1, 2),
    "attributes": lambda: _with_attributes(_List([1]), a=[1]),
    "dict attributes": lambda: _with_attributes(_Dict(a=1), b=2),
}


@pytest.mark.parametrize("make", SAME.values(), ids=SAME)
def test_equal_containers_share_a_trace(make):
    assert _traces_of(make(), make(), make()) == [1, 1, 1]


def _moved():
    out = collections.OrderedDict(a=1, b=2)
    out.move_to_end("a")
    return out


@dataclasses.dataclass(eq=False)
class _Unequal:
    """No copy is equal to it, so it is compared by its fields."""

    n: int
    __hash__ = None

    def __eq__(self, other):
        return self is other


class _OtherUnequal(_Unequal):
    pass


DIFFERENT = {
    "classes of dataclasses": (_Unequal(1), _OtherUnequal(1)),
    "order of an ordered dictionary": (collections.OrderedDict(a=1, b=2), _moved()),
    "default factory": (collections.defaultdict(list), collections.defaultdict(int)),
    "keys with parts": ({(1, 2): 3}, {(1, 3): 3}),
    "a second key with parts": ({(): 1, (1, 2): 3}, {(): 1, (1, 3): 3}),
    "values with parts": ({1: (2,), 2: 3}, {1: (3,), 2: 3}),
    "type": (_List([1]), [1]),
    "length": (_Tuple((1,)), _Tuple((1, 1))),
    "number": (_Tuple((1,)), _Tuple((1.0,))),
    "value": (_Dict(a=1), _Dict(a=2)),
    "key": (_Dict({1: 0}), _Dict({True: 0})),
    "order": (_Dict(a=1, b=2), _Dict(b=2, a=1)),
    "attribute": (_with_attributes(_List([1]), a=1), _with_attributes(_List([1]), a=2)),
    "no attribute": (_with_attributes(_Tuple([1]), a=1), _Tuple([1])),
    # The tuple's last element equals the attributes of the other.
    "tuple or attributes": (
        _Tuple((1, {"a": 1})),
        _with_attributes(_Tuple((1,)), a=1),
    ),
    "list or attributes": (_List([1, {"a": 1}]), _with_attributes(_List([1]), a=1)),
    "deque or attributes": (
        collections.deque([{"a": 1}]),
        _with_attributes(type("D", (collections.deque,), {})(), a=1),
    ),
}


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT)
def test_different_containers_do_not(pair):
    assert _traces_of(*pair, *pair) == [1, 2, 2, 2]


@pytest.mark.parametrize("make", [_List, _Dict, _Tuple], ids=lambda c: c.__name__)
def test_a_container_that_changes_is_traced_again(make):
    x = make({"a": 1}) if make is _Dict else make(([1],))
    f, traces = count_traces(lambda m, x: x)
    f(_Holder(x), X)
    if make is _Dict:
        x["a"] = 2
    else:
        x[0].append(2)
    f(_Holder(x), X)
    assert len(traces) == 2
    x.extra = 1
    f(_Holder(x), X)
    f(_Holder(x), X)
    assert len(traces) == 3


def test_what_a_cached_property_keeps_is_no_attribute():
    class Sizes(list):
        @functools.cached_property
        def total(self):
            return sum(self)

    f, traces = count_traces(lambda m, x: x * m.static.total)
    sizes = Sizes([1, 2])
    assert [float(f(_Holder(sizes), X)) for _ in range(3)] == [3.0] * 3
    assert float(f(_Holder(Sizes([1, 2])), X)) == 3.0
    assert len(traces) == 1


@dataclasses.dataclass(slots=True)
class _Slots:
    n: typing.Any = 1
    m: typing.Any = "a"


@dataclasses.dataclass
class _Base:
    __slots__ = ("__dict__", "m", "n")
    n: typing.Any
    m: typing.Any

    def __init__(self, n=1, m="a"):
        self.n, self.m = n, m


@pytest.mark.parametrize("cls", [_Slots, _Base], ids=lambda c: c.__name__)
def test_slots_are_compared_by_type_and_value(cls):
    assert _traces_of(cls(), cls(), cls(1.0), cls(m="b"), cls(1)) == [1, 1, 2, 3, 3]
    unset = cls()
    del unset.m
    assert _traces_of(unset, cls(m=None), unset) == [1, 2, 2]
    changing = cls([1])
    f, traces = count_traces(lambda m, x: x * m.static.n[0])
    assert float(f(_Holder(changing), X)) == 1.0
    changing.n[0] = 5
    assert float(f(_Holder(changing), X)) == 5.0
    assert len(traces) == 2


@pytest.mark.parametrize("make", [np.float32, np.int8, jnp.float32, np.ones])
def test_numbers_and_arrays_in_static_fields(make):
    values = [make(1), make(1), make(2) if make is not np.ones else np.zeros(1)]
    with pytest.warns(UserWarning, match="set as static"):
        holders = [_Holder(x) for x in values]
    f, traces = count_traces(lambda m, x: x * m.static.astype(np.float32))
    assert [float(jnp.sum(f(m, X))) for m in holders] == [
        float(np.sum(x)) for x in values
    ]
    assert len(traces) == 2


# --- wrappers ------------------------------------------------------------------------


class _Scale(eqx.Module):
    w: jax.Array

    def __call__(self, x):
        return x * self.w


def _grad(n):
    def loss(m, x):
        return m.w * x * n

    return eqx.filter_grad(loss)


def test_a_wrapped_module_is_traced_once():
    f, traces = count_traces(lambda g, x: g(x))
    for i in range(4):
        g = eqx.filter_vmap(_Scale(jnp.asarray(float(i))))
        np.testing.assert_array_equal(f(g, jnp.ones(2)), [i, i])
    assert len(traces) == 1


@pytest.mark.parametrize("static", [False, True])
def test_wrappers_of_other_functions_are_not_mixed_up(static):
    f, traces = count_traces(lambda g, x: (g.static if static else g)(_Scale(x), x).w)
    gradients = [_grad(1.0), _grad(2.0)]
    if static:
        gradients = [_Holder(g) for g in gradients]
    out = [float(f(g, X)) for g in gradients * 2]
    assert out == [1.0, 2.0, 1.0, 2.0] and len(traces) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("__doc__", "another"),
        ("__name__", "another"),
        ("__annotations__", {"x": int}),
        ("__annotations__", None),
    ],
)
def test_what_a_wrapper_shows_is_compared(name, value):
    """As in Equinox: a function may read these attributes while it is traced."""

    def loss(m, x):
        """A loss."""
        return m.w * x

    def another(m, x):
        """A loss."""
        return m.w * x

    another.__code__ = loss.__code__
    f, traces = count_traces(lambda g, x: x)
    g = eqx.filter_grad(loss)
    f(g, X)
    f(g, X)
    assert len(traces) == 1
    changed = jax.tree.map(lambda x: x, g)
    vars(changed)[name] = value
    f(changed, X)
    f(changed, X)
    assert len(traces) == 2
    del vars(changed)[name]
    f(changed, X)
    assert len(traces) == 3


def test_annotations_that_change_are_seen():
    g = _grad(1.0)
    f, traces = count_traces(lambda g, x: x)
    f(g, X)
    vars(g)["__annotations__"]["x"] = int
    f(g, X)
    f(g, X)
    assert len(traces) == 2


def test_a_module_with_any_other_attribute_is_left_to_equinox():
    f, traces = count_traces(lambda m, x: m.w * x)
    plain, other = _Scale(X), _Scale(X)
    vars(other)["__doc__"] = "a text"
    odd = _Scale(X)
    vars(odd)["unknown"] = 1
    for m in (plain, other, odd, plain, other, odd):
        f(m, X)
    assert len(traces) == 3


class _Name(str):
    pass


class _Count(int):
    def __index__(self):
        raise AssertionError("read through an override")


class _Rate(float):
    pass


@pytest.mark.parametrize(
    ("cls", "value", "other"),
    [(_Name, "a", "b"), (_Count, 1, 2), (_Count, 2**70, 2**71), (_Rate, 0.0, -0.0)],
)
@pytest.mark.parametrize("wrap", [_Holder, lambda x: x], ids=["field", "leaf"])
def test_subclasses_of_scalars(cls, value, other, wrap):
    def of(x, **attributes):
        return wrap(_with_attributes(x, **attributes))

    assert _traces_of(of(cls(value)), of(cls(value))) == [1, 1]
    assert _traces_of(of(cls(value)), of(cls(other)), of(value)) == [1, 2, 3]
    assert _traces_of(of(cls(value), n=1), of(cls(value)), of(cls(value), n=1.0)) == [
        *(1, 2, 3)
    ]
    assert _traces_of(of(cls(value), n=[1]), of(cls(value), n=[1])) == [1, 1]
