"""Regression tests: faults found in a nineteenth adversarial review of the C files."""

import dataclasses
import typing

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

from eqx_fastjit import _compat, filter_jit


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
