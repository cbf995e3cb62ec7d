"""A repeated call on the native engine runs no Python but the user's own.

What C leaves to Python gives the same results, and costs many times as much.
"""

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import gc
import pathlib
import re
import sys
import uuid
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

from eqx_fastjit import engine, filter_jit


pytestmark = pytest.mark.one_engine

X = jnp.arange(3.0)


@pytest.fixture(autouse=True)
def native():
    if engine() != "native":
        pytest.skip("of the native engine")


def python_calls(f, *args, **kwargs):
    """The names of the Python functions that a call runs."""
    names = []

    def profile(frame, event, _):
        if event == "call":
            names.append(frame.f_code.co_qualname)

    gc.disable()
    sys.setprofile(profile)
    try:
        f(*args, **kwargs)
    finally:
        sys.setprofile(None)
        gc.enable()
    return names


def check(f, *args, **kwargs):
    f(*args, **kwargs)
    f(*args, **kwargs)
    assert python_calls(f, *args, **kwargs) == []


# --- statics -------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1


class Point(collections.namedtuple("Point", "x y")):
    __slots__ = ()


class Name(str):
    __slots__ = ()


class Number(int):
    __slots__ = ()


class Length(float):
    __slots__ = ()


class Names(list):
    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class Window:
    size: int
    stride: tuple
    of: object = None


def _with_fields(n):
    fields = [(f"a{i}", int, i) for i in range(n)]
    return dataclasses.make_dataclass(f"With{n}", fields, frozen=True)()


def _function(x):
    return x


class Holder(eqx.Module):
    x: jax.Array
    static: object = eqx.field(static=True)


HASHABLE = {
    "int": 2,
    "negative int": -(2**63),
    "big int": 2**80,
    "bool": True,
    "float": 0.5,
    "nan": float("nan"),
    "complex": 1j,
    "str": "a",
    "bytes": b"a",
    "ellipsis": ...,
    "function": _function,
    "builtin class": int,
    "class": Window,
    "member of an enum": Colour.RED,
    "jax function": jnp.tanh,
    "jitted function of jax": jax.nn.relu,
    "scalar type": jnp.float32,
    "dtype": np.dtype("float32"),
    "precision": jax.lax.Precision.HIGHEST,
    "shape and dtype": jax.ShapeDtypeStruct((2,), "float32"),
    "path": pathlib.PurePosixPath("a/b"),
    "pattern": re.compile("a+"),
    "sharding": jax.sharding.SingleDeviceSharding(jax.devices()[0]),
    "frozenset": frozenset({"a", 1, (2, "b")}),
    "frozenset of numbers": frozenset({0.5, True, (2.5, b"a"), 1j}),
    "frozenset of members": frozenset({Colour.RED, 1}),
    "frozenset of frozensets": frozenset({frozenset({0.5}), frozenset()}),
    "frozenset of many": frozenset(i / 2 for i in range(100)),
    "frozen dataclass": Window(2, (1, 1), Window(3, ())),
    "of 48 fields": _with_fields(48),
    "subclass of str": Name("a"),
    "subclass of int": Number(2),
    "subclass of float": Length(0.5),
    "object": object(),
}
ANY = {
    **HASHABLE,
    "None": None,
    "many parts": [[(i,)] for i in range(200)],
    "tuple": (1, "a", (2.0, ()), None),
    "list": [1, [2, []], (3,)],
    "dict": {"a": 1, "b": "c", "d": {2: [1]}},
    "dict with tuples as keys": {(1, 2): 3, (1, 3): [4]},
    "empty": [{}, [], (), frozenset(), set()],
    "set": {"a", 1, (2, "b")},
    "set of numbers": {0.5, (2.5,), Colour.RED},
    "slice": slice(1, None, 2),
    "named tuple": Point(1, (2,)),
    "subclass of list": Names([1, [2]]),
    "vocabulary": {f"word {i}": i for i in range(1000)},
    "module without arrays": eqx.nn.Dropout(0.5),
}


@pytest.mark.parametrize("name", HASHABLE)
def test_static_leaves(name):
    f = filter_jit(lambda tree: tree["x"] * 2)
    check(f, {"x": X, "static": HASHABLE[name]})
    check(f, {"x": X, "static": [HASHABLE[name], HASHABLE[name]]})


@pytest.mark.parametrize("name", ANY)
def test_static_fields(name):
    f = filter_jit(lambda holder: holder.x * 2)
    check(f, Holder(X, ANY[name]))
    check(f, Holder(X, (ANY[name], [ANY[name]])))


# What Python reads, but not again if it cannot have been changed.
READ_ONCE = {
    "range": range(3),
    "treedef": jtu.tree_structure({"a": (1, [2, None]), "b": eqx.nn.Dropout(0.5)}),
    "decimal": decimal.Decimal("1.0"),
    "uuid": uuid.UUID(int=1),
    "time zone": datetime.UTC,
    "method of a string": "a".upper,
}


@pytest.mark.parametrize("name", READ_ONCE)
def test_static_fields_that_cannot_be_changed(name):
    f = filter_jit(lambda holder: holder.x * 2)
    check(f, Holder(X, READ_ONCE[name]))


# --- nodes and results ---------------------------------------------------------------


class Wide(eqx.Module):
    arrays: list
    names: tuple = eqx.field(static=True)


@jtu.register_dataclass
@dataclasses.dataclass
class PointNode:
    x: jax.Array
    n: int = dataclasses.field(metadata={"static": True})


class Empty(eqx.Module):
    pass


TREES = {
    "array": X,
    "None": None,
    "tuple": (X, (X, ()), 1),
    "list": [X, [X, []], "a"],
    "dict": {"b": X, "a": {"d": X, "c": X}, "e": 1},
    "dict of ints": {2: X, 1: X},
    "large dict": {f"{i}": X for i in range(100)},
    "dict of a subclass": {Name("b"): X, Name("a"): X},
    "defaultdict": collections.defaultdict(list, b=X, a=X),
    "ordered": collections.OrderedDict(b=X, a=X),
    "named tuple": Point(X, (X, 1)),
    "module": eqx.nn.MLP(2, 2, 2, 2, key=jax.random.key(0)),
    "modules": Wide([Wide([X], ("a",)), Empty(), X], ("b", "c")),
    "many": [X] * 300,
    "dataclasses": [PointNode(X, 1), PointNode((X, None), 2)],
}


@pytest.mark.parametrize("name", TREES)
def test_nodes(name):
    check(filter_jit(lambda tree, x: x + 1), TREES[name], X)


# JAX itself makes the other two in Python.
@pytest.mark.parametrize("name", sorted(TREES.keys() - {"defaultdict", "ordered"}))
def test_results(name):
    check(filter_jit(lambda tree, x: (tree, x + 1)), TREES[name], X)


class Caching(eqx.Module):
    x: jax.Array
    n: int = eqx.field(static=True, default=3)

    @functools.cached_property
    def area(self):
        return self.n**2


@dataclasses.dataclass(frozen=True)
class Config:
    n: int = 3

    @functools.cached_property
    def area(self):
        return self.n**2


def test_attributes_that_are_no_fields_of_a_static():
    f, others = filter_jit(lambda x, config: x * config.area), [Config(), Config(4)]
    for config in (*others, Config(5)):
        assert f(X, config)[1] == config.area
        check(f, X, config)


def test_attributes_that_are_no_fields():
    modules, points = [Caching(X), Caching(X)], [PointNode(X, 1), PointNode(X, 1)]
    assert modules[0].area == modules[1].area == 9
    vars(points[1]).clear()
    vars(points[1]).update(x=X, other=[1], n=1, another=2)
    check(filter_jit(lambda *trees: trees[0][0].x + trees[1][0].x), modules, points)


def test_what_is_known_of_jitted_functions_is_kept_when_jax_makes_another():
    """JAX writes to the class of all of them, which renews the class's version; Python
    3.13 gives a class no more than 1,000.
    """
    f, jitted = filter_jit(lambda g, x: g(x)), jax.jit(jnp.sin)
    f(jitted, X)
    jax.jit(jnp.cos)
    assert python_calls(f, jitted, X) == []
    for _ in range(1100):
        type(jitted).of_a_test = None
        assert type(jitted).of_a_test is None
    del type(jitted).of_a_test
    check(f, jitted, X)


def test_what_is_known_of_other_types_is_kept_when_one_dies():
    f = filter_jit(lambda tree: tree["x"] * 2)
    statics = [Point(1, 2), *HASHABLE.values()]
    check(f, {"x": X, "statics": statics})
    g = filter_jit(lambda tree: tree["x"] * 2)
    cls = type("Gone", (), {})
    died = weakref.ref(cls)
    g({"x": X, "statics": cls()})
    del g, cls
    for _ in range(3):
        gc.collect()
    assert died() is None
    assert python_calls(f, {"x": X, "statics": statics}) == []


class Leaf(eqx.Module):
    w: jax.Array
    n: int


def test_large_results_do_not_let_the_collector_run():
    """It looked at all of them, in each call."""
    f = filter_jit(lambda tree, x: (tree, x + 1))
    tree, x = f([Leaf(X, i) for i in range(300)], X)
    runs = []
    gc.callbacks.append(lambda phase, info: runs.append(info))
    try:
        for _ in range(20):
            tree, x = f(tree, x)
        assert len(runs) < 20  # two for each time: not in every other call
        kept = [f(tree, x) for _ in range(10)]
        assert len(runs) > 5  # but it does, of what is kept
    finally:
        gc.callbacks.pop()
    assert len(kept) == 10


@jax.tree_util.register_pytree_node_class
class Switches:
    """A node that is built with the collector as the user has it; and turns it off."""

    def __init__(self, x):
        self.x = x

    def tree_flatten(self):
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        enabled.append(gc.isenabled())
        if cls.turns_off:
            gc.disable()
        if cls.fails:
            raise RuntimeError("built")
        return cls(*children)

    turns_off = fails = False


enabled = []


@pytest.mark.parametrize("at_first", [True, False])
@pytest.mark.parametrize("turns_off", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_the_collector_is_left_as_the_user_has_it(
    at_first, turns_off, fails, monkeypatch
):
    f = filter_jit(lambda x: (Leaf(x, 1), Switches(x), {Point(1, 2): Leaf(x, 3)}, x))
    f(X)
    monkeypatch.setattr(Switches, "turns_off", turns_off)
    monkeypatch.setattr(Switches, "fails", fails)
    enabled.clear()
    if not at_first:
        gc.disable()
    try:
        if fails:
            with pytest.raises(RuntimeError, match="built"):
                f(X)
        else:
            f(X)
        assert gc.isenabled() == (at_first and not turns_off)
    finally:
        gc.enable()
    assert enabled == [at_first]


# --- binding -------------------------------------------------------------------------


def _several(x, /, y, n=2, *rest, scale=3.0, **others):
    return x * y * n * scale


class Scaled(eqx.Module):
    factor: jax.Array

    @filter_jit
    def method(self, x, n=1):
        return x * self.factor * n

    @filter_jit
    def __call__(self, x, *, n=1):
        return x * self.factor * n


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((X, X), {}),
        ((X,), {"y": X}),
        ((X, X, 3), {}),
        ((X,), {"n": 3, "y": X}),
        ((X, X, 3, X, 5), {}),
        ((X, X), {"scale": 2.0}),
        ((X, X), {"b": X, "a": "static"}),
        ((X, X, 3, X), {"scale": 2.0, "b": X, "a": "static"}),
        ((X,), {"c": 1, "scale": 2.0, "y": X, "b": 2}),
    ],
)
def test_arguments(args, kwargs):
    check(filter_jit(_several), *args, **kwargs)


def test_callables():
    scaled = Scaled(X)
    check(scaled.method, X)
    check(scaled.method, X, n=2)
    check(Scaled.method, scaled, X)
    check(scaled, X)
    check(scaled, X, n=2)
    check(filter_jit(scaled), X)
    check(filter_jit(eqx.nn.Linear(3, 2, key=jax.random.key(0))), X)
    check(filter_jit(functools.partial(_several, X)), X)
    check(functools.partial(filter_jit(_several), X, n=4), X)


def test_the_state_of_a_model():
    make = eqx.nn.make_with_state(eqx.nn.BatchNorm)
    norm, state = make(3, axis_name="batch", mode="ema")
    check(filter_jit(lambda norm, state: jtu.tree_leaves((norm, state))), norm, state)


class Plain:
    @filter_jit
    def method(self, x):
        return x + 1


def test_a_method_is_called_without_a_bound_one():
    plain = Plain()

    def call():
        return plain.method(X)

    call()
    call()
    assert python_calls(call) == [call.__qualname__]
    plain.method = lambda x: x + 2
    assert call().tolist() == [2, 3, 4]
    del plain.method
    assert call().tolist() == [1, 2, 3]


def test_what_is_compared_by_python_is_seen():
    class Equal:
        def __eq__(self, other):
            return True

        def __hash__(self):
            return 1

    f = filter_jit(lambda holder: holder.x * 2)
    f(Holder(X, Equal()))
    assert "Equal.__hash__" in str(python_calls(f, Holder(X, Equal())))
