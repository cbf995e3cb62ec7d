"""Regression tests: faults found in a third adversarial review of the engine."""

import dataclasses
import functools
import typing

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import pytest

from eqx_fastjit import filter_jit
from tests.traces import count_traces


X = jnp.ones(3)


class _Holder(eqx.Module):
    x: typing.Any
    static: typing.Any = eqx.field(static=True)


class _Part(eqx.Module):
    dynamic: typing.Any = None
    static: typing.Any = eqx.field(static=True, default=None)


def _dataclass(cls):
    return jtu.register_dataclass(dataclasses.dataclass(cls), ["a"], ["n"])


# --- nodes ---------------------------------------------------------------------------


def test_static_fields_and_static_data_of_the_same_value():
    """Without its static field, a Module differs from one that holds its aux data."""
    f = filter_jit(lambda m: (X, "static" in vars(m)))
    g = filter_jit(lambda h: (h.x, "static" in vars(h.static)))
    lacking = object.__new__(_Part)
    object.__setattr__(lacking, "dynamic", 1)
    aux = jtu.tree_structure(lacking).node_data()[1]
    for module, has in ((lacking, False), (_Part(1, aux), True), (lacking, False)):
        assert f(module)[1] is has
        assert g(_Holder(X, module))[1] is has


def test_a_dataclass_with_a_field_missing_or_others():
    @_dataclass
    class Data:
        a: typing.Any
        n: typing.Any = 5

        @functools.cached_property
        def size(self):
            return 3

    f, traces = count_traces(lambda data: (data.a, data.n))

    def make(a, n, *order):
        out = object.__new__(Data)
        values = {"a": a, "n": n, "note": "x", "other": "y"}
        vars(out).update({name: values[name] for name in order})
        return out

    # An instance without `n` has the class's. It is flattened as a whole: its static
    # data is a tuple of one, which must not be taken for the next instance's `n`.
    for data, n in (
        (make(X, None, "a", "note"), 5),
        (make(X, (5,), "a", "n"), (5,)),
        (make(X, (5,), "note", "n", "other", "a"), (5,)),
        (make(X, 5, "n", "note", "a"), 5),
    ):
        assert f(data)[1] == n and type(f(data)[1]) is type(n)
        assert f(data)[1] == n
    assert len(traces) == 3
    data = Data(X, 7)
    f(data)
    assert data.size == 3
    f(data)
    assert len(traces) == 4


def _with_dict_property(*fields):
    def of_class(self):
        return {"a": 0, "n": 7}

    return type(
        "WithDict",
        (),
        {
            "__annotations__": dict.fromkeys(fields, typing.Any),
            "__dict__": property(of_class),
        },
    )


class _Lying(dict):
    def __getitem__(self, key):
        return 99


def test_attributes_are_not_what_dict_says():
    for register in (True, False):
        cls = dataclasses.dataclass(_with_dict_property("a", "n"))
        if register:
            cls = jtu.register_dataclass(cls, ["a"], ["n"])
            f = filter_jit(lambda data: data.a * data.n)
        else:
            f = filter_jit(lambda h: h.x * h.static.n)
        for n in (2, 3, 2):
            data = cls(X if register else 0, n)
            assert f(data if register else _Holder(X, data))[0] == n


def test_a_dictionary_of_attributes_that_reads_in_its_own_way():
    @_dataclass
    class Data:
        a: typing.Any
        n: typing.Any

    f = filter_jit(lambda data: data.a * data.n)
    g = filter_jit(lambda h: h.x * h.static.n)
    for n in (2, 3, 2):
        data, static = Data(X, n), _Plain(n)
        data.__dict__ = _Lying(a=X, n=n)
        static.__dict__ = _Lying(n=n)
        assert f(data)[0] == n
        assert g(_Holder(X, static))[0] == n


@dataclasses.dataclass
class _Plain:
    n: typing.Any


# --- statics -------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
@pytest.mark.parametrize(
    "of",
    [
        lambda module: module.jitted,
        lambda module: _Part([module.jitted]).dynamic[0],
        lambda module: filter_jit(module.divide),
        lambda module: filter_jit(filter_jit(module.jitted)),
    ],
)
def test_jitted_functions_as_statics_are_compared_by_type_and_bits(of):
    class Model(eqx.Module):
        w: typing.Any

        def divide(self, x):
            return x / self.w

        # Wrapped here, so that it uses the engine of this test.
        jitted = filter_jit(divide)

    f, traces = count_traces(lambda h: h.static(h.x))
    zero, nan = jnp.array(0.0), jnp.array(jnp.nan)
    for w, expected in ((zero, jnp.inf), (-zero, -jnp.inf), (zero, jnp.inf)):
        assert f(_Holder(X, of(Model(w))))[0] == expected
    for w in (nan, nan + 0):
        assert jnp.isnan(f(_Holder(X, of(Model(w))))[0])
    assert len(traces) == 3
    for w in (1, 1.0, 1):
        f(_Holder(X, of(Model(w))))
    assert len(traces) == 5


class _Tuple(tuple):
    @functools.cached_property
    def total(self):
        return sum(self)


class _Str(str):
    @functools.cached_property
    def total(self):
        return len(self)


class _List(list):
    @functools.cached_property
    def total(self):
        return len(self)


@pytest.mark.parametrize("make", [lambda: _Tuple((1, 2)), lambda: _Str("ab")])
def test_a_cached_property_is_no_part_of_a_leaf(make):
    f, traces = count_traces(lambda x, static: x * static.total)
    static = make()
    for value in (static, static, make(), make(), static):
        assert f(X, value)[0] == value.total
    assert len(traces) == 1


def test_a_cached_property_is_no_part_of_a_static():
    f, traces = count_traces(lambda h: h.x * h.static.total)
    for _ in range(3):
        f(_Holder(X, _List([1])))
    assert len(traces) == 1
    noted = _List([1])
    noted.note = "an attribute as others are"
    f(_Holder(X, noted))
    assert len(traces) == 2


def test_a_cached_property_of_pydantic():
    pydantic = pytest.importorskip("pydantic")

    class Cfg(pydantic.BaseModel):
        n: int

        @functools.cached_property
        def twice(self):
            return self.n * 2

    f, traces = count_traces(lambda h: h.x * h.static.twice)
    for n in (1, 1, 2, 1):
        assert f(_Holder(X, Cfg(n=n)))[0] == 2 * n
    assert len(traces) == 2


def test_attributes_of_a_tuple_need_no_hash():
    f, traces = count_traces(lambda x, static: x * static.scale)
    for scale in (2, 3, 2):
        static = _Tuple((1, 2))
        static.scale = scale
        assert f(X, static)[0] == scale
    assert len(traces) == 2
    with pytest.raises(TypeError, match="cannot be hashed"):
        f(X, _Tuple(([],)))
