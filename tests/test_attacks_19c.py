"""Regression tests: faults found in a nineteenth adversarial review of the C files."""

import dataclasses
import typing

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

from eqx_fastjit import _compat, filter_jit
from eqx_fastjit._partition import DYNAMIC, Structure
from eqx_fastjit._plan import Op, Plan
from tests.traces import count_traces


A, B = jnp.arange(3.0), jnp.arange(3.0) + 10


# --- registered dataclasses in results ------------------------------------------------


def register_dataclass(cls):
    """What programs wrote before JAX had a function of this name."""

    def flatten(x):
        return (x.x, x.y), None

    def flatten_with_keys(x):
        keys = map(jtu.GetAttrKey, ("x", "y"))
        return tuple(zip(keys, (x.x, x.y), strict=True)), None

    def unflatten(aux, children):
        return cls(*children)

    jtu.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def test_a_function_of_the_users_that_is_called_like_that_of_jax(engine):
    @register_dataclass
    @dataclasses.dataclass
    class Pair:
        x: typing.Any
        y: typing.Any

    f = filter_jit(lambda pair: Pair(pair.y, pair.x))
    for _ in range(2):
        out = f(Pair(A, B))
        np.testing.assert_array_equal(out.x, B)
        np.testing.assert_array_equal(out.y, A)


def _with_an_init_of_its_own():
    """Of classes for which `dataclasses` would write another, or none."""

    @dataclasses.dataclass(init=False)
    class Ordered:
        x: typing.Any = None
        y: typing.Any = dataclasses.field(metadata={})

        def __init__(self, x, y):
            self.x = x
            self.y = y

    @dataclasses.dataclass(init=False)
    class Keywords:
        x: typing.Any

        def __init__(self, **x):
            self.x = x

    @dataclasses.dataclass(init=False)
    class Arguments:
        x: typing.Any
        y: typing.Any

        def __init__(self, *x, **y):
            self.x = x
            self.y = y

    namespace = {"__annotations__": {"x": typing.Any, "__slots__": typing.Any}}
    Slotted = dataclasses.dataclass(type("Slotted", (), namespace))
    return Ordered, Keywords, Arguments, Slotted


@pytest.mark.parametrize("number", range(4))
def test_dataclasses_with_an_init_of_their_own(engine, number):
    cls = _with_an_init_of_its_own()[number]
    names = [field.name for field in dataclasses.fields(cls)]
    jtu.register_dataclass(cls, names, [])

    def make(x):
        out = object.__new__(cls)
        vars(out).update(dict.fromkeys(names, x))
        return out

    expected = jax.tree.map(np.asarray, vars(jax.jit(make)(A)))
    f = filter_jit(make)
    for _ in range(2):
        got = jax.tree.map(np.asarray, vars(f(A)))
        assert list(got) == list(expected)
        jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_dataclasses_that_jax_does_not_say_how_to_make(engine, monkeypatch):
    """As in another version of JAX: it may be made by any function."""

    @dataclasses.dataclass
    class Pair:
        x: typing.Any
        y: typing.Any

    def flatten(pair):
        return (pair.x[0],), len(pair.y)

    jtu.register_pytree_node(Pair, flatten, lambda n, c: Pair((c[0],), "y" * n))
    monkeypatch.setattr(_compat, "node_registry", lambda: None)
    f = filter_jit(lambda x: Pair((x, 1), "yyy"))
    for _ in range(2):
        out = f(A)
        np.testing.assert_array_equal(out.x[0], A)
        assert out.y == "yyy" and len(out.x) == 1


# --- Modules with attributes that are no fields -------------------------------------


class Three(eqx.Module):
    x: typing.Any
    y: typing.Any
    n: typing.Any = eqx.field(static=True)


class Holder(eqx.Module):
    x: typing.Any
    below: typing.Any = eqx.field(static=True)


def _with(**attributes):
    module = object.__new__(Three)
    vars(module).update(attributes)
    return module


# Equinox looks at wrapper's names if there are not as many attributes as fields.
_LACKING = [
    {"x": 1, "n": 2},
    {"x": 1, "n": 2, "a": 3, "b": 4},
    {"b": 4, "x": 1, "c": 5, "n": 2, "a": 3},
    {"x": 1, "n": 2, "a": 3},
    {"x": 1, "n": 2, "__doc__": "a"},
    {"x": 1, "n": 2, "__doc__": "b"},
    {"x": 1, "n": 2, "__doc__": "b", "a": 3},
    {"x": 1, "n": 2, "__doc__": "c", "a": 3},
    {"a": 3, "b": 4},
]


@pytest.mark.parametrize("below", [False, True])
def test_fields_that_are_not_there_and_other_attributes(engine, below):
    numbers = []
    for jit in (eqx.filter_jit, filter_jit):
        f, traces = count_traces(lambda module: module.x, jit)
        met = []
        for attributes in _LACKING:
            module = _with(**attributes)
            if not below and "x" in attributes:
                object.__setattr__(module, "x", A)
            f(Holder(A, module) if below else Holder(module, 3))
            met.append(len(traces))
        numbers.append(met)
    assert numbers[0] == numbers[1]


def test_dataclasses_of_the_same_constants_are_copied_from_one_dictionary():
    """As Modules are: a call reads less memory."""

    @jtu.register_dataclass
    @dataclasses.dataclass
    class Scaled:
        x: typing.Any
        n: typing.Any = dataclasses.field(metadata={"static": True})

    out = [Scaled(A, "a"), (Scaled(B, "a"), Scaled(B, "b"))]
    leaves, treedef = jtu.tree_flatten(out)
    plan = Plan(Structure(treedef, (DYNAMIC,) * len(leaves)))
    first, second, other = [data for op, _, data in plan.steps if op == Op.MODULE]
    assert first is second and first is not other
