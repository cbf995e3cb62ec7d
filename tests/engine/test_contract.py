"""The contract: when two statics are the same, and when a trace ends.

Two statics share a trace if, and only if, `docs/contract.md` says that they are the
same; after a change in place a call retraces, and no trace is used again whose own
statics have changed. Writing to an attribute of a class does not retrace.

A table of kinds of statics, of places where a static may be, and of four relations
between the static of one call and that of the next: equal, different, changed in place,
and equal to one that was changed after its trace. Counts of
traces are compared, and what the function saw: it returns a text of its static.
"""

import argparse
import collections
import dataclasses
import enum
import functools
import gc
import math
import types
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import attrs
import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pydantic
import pytest

import eqx_fastjit
from tests.support.modules import Frozen, Hashed, Holder, Inner, Node, Pair
from tests.support.traces import count_traces


pytestmark = pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
X = jnp.ones(2)


# --- statics ---


class OtherPair(NamedTuple):
    a: object
    b: object


@dataclasses.dataclass
class Unhashable:
    n: object


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class RegisteredStatic:
    n: object


@attrs.frozen
class AttrsFrozen:
    n: object


@attrs.define
class Attrs:
    n: object


class Pydantic(pydantic.BaseModel):
    n: object


class Struct(msgspec.Struct):
    n: object


class FrozenStruct(msgspec.Struct, frozen=True):
    n: int


class ConfigDict:
    """Like that of `ml_collections`: it has an `__eq__`, and no hash."""

    def __init__(self, **fields):
        object.__setattr__(self, "_fields", dict(fields))

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return self._fields[name]

    def __setattr__(self, name, value):
        self._fields[name] = value

    def __eq__(self, other):
        return type(other) is ConfigDict and self._fields == other._fields

    def __repr__(self):
        return f"ConfigDict({self._fields})"


class Plain:
    """Has the `__eq__` of `object`."""

    def __init__(self, n):
        self.n = n


class HashedByName(Hashed):
    """Neither its hash nor its `__eq__` depends on what may be changed."""

    def __eq__(self, other):
        return type(other) is HashedByName

    def __hash__(self):
        return 1


class ListSubclass(list):
    pass


class DictSubclass(dict):
    pass


class Attributes(dict):
    def __init__(self, **attributes):
        super().__init__(attributes)
        self.__dict__ = self


class Str(str):
    pass


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    A = "a"


class Layer(eqx.Module):
    n: object
    width: int = eqx.field(static=True, default=1)


class Branch(Node):
    def __repr__(self):
        return f"{self.children} {self.aux}"


class OtherBranch(Branch):
    pass


for _cls in (Branch, OtherBranch):
    jax.tree_util.register_pytree_node(
        _cls, lambda n: (n.children, n.aux), lambda aux, xs, cls=_cls: cls(xs, aux)
    )


def square(x):
    return x**2


def negative(x):
    return -x


def lambdas():
    return [lambda x: x for _ in range(2)]


def _set_n(x):
    x.n = 99


def _set_fields(x):
    object.__setattr__(x, "n", 99)


def _set_item(x):
    x[0] = 99


@dataclasses.dataclass
class Kind:
    """A row of the table: one static, and what is not the same."""

    # Gives equal statics, which are distinct objects where Python allows.
    make: Callable[[], Any]
    # None is the same as it, though some are equal by `==`.
    others: list[Any]
    change: Callable[[Any], Any] | None = None
    # Whether the change is to be noticed.
    is_noticed: bool = True
    # An array is traced unless it is in a static field.
    only_static: bool = False
    # As an argument, it is flattened into its parts.
    is_node: bool = False


_ONE_ARRAY = jnp.arange(3)
_LAMBDAS = lambdas()
_PLAIN = Plain(1)

KINDS = {
    "int": Kind(lambda: 10**20, others=[1e20, 1, -1]),
    "small int": Kind(lambda: 1, others=[1.0, True, Number.ONE, 2]),
    "bool": Kind(lambda: True, others=[1, 1.0, False]),
    "float": Kind(lambda: float("0.5"), others=[0.5 + 0j, 0.25]),
    "zero": Kind(lambda: 0.0, others=[0, False, -0.0]),
    "NaN": Kind(lambda: float("nan"), others=[complex("nan"), math.inf]),
    "complex": Kind(lambda: complex(0, 0), others=[0, complex(0, -0.0)]),
    "str": Kind(lambda: "".join("ab"), others=[b"ab", Str("ab"), "b"]),
    "str of an enum": Kind(lambda: "a", others=[Word.A, "b"]),
    "bytes": Kind(lambda: bytes([97]), others=[bytearray(b"a"), "a", b"b"]),
    "None": Kind(lambda: None, others=[False, ()]),
    "ellipsis": Kind(lambda: ..., others=[None]),
    "range": Kind(lambda: range(3), others=[(0, 1, 2), range(4)]),
    "tuple": Kind(
        lambda: (1, (2, "a")),
        others=[
            (1.0, (2, "a")),
            (True, (2, "a")),
            [1, (2, "a")],
            Pair(1, (2, "a")),
            (1, (3, "a")),
            (1, 2, "a"),
            (1,),
            (),
        ],
        is_node=True,
    ),
    "namedtuple": Kind(
        lambda: Pair(1, 2),
        others=[OtherPair(1, 2), (1, 2), Pair(1.0, 2), Pair(2, 1)],
        is_node=True,
    ),
    "list": Kind(
        lambda: [1, [0.0]],
        others=[
            (1, [0.0]),
            [True, [0.0]],
            [1, [0]],
            ListSubclass([1, [0.0]]),
            [1, [-0.0]],
            [1],
            [],
        ],
        change=lambda x: x[1].append(2),
        is_node=True,
    ),
    "dict": Kind(
        lambda: {"a": 1, "b": 2},
        others=[
            {"a": 1, "b": 2.0},
            DictSubclass(a=1, b=2),
            {Word.A: 1, "b": 2},
            {"a": 1},
            {"a": 1, "c": 2},
            {},
        ],
        change=lambda x: x.update(a=3),
        is_node=True,
    ),
    "two dicts": Kind(lambda: [{1: 2}, {}], others=[[{}, {1: 2}]], is_node=True),
    "keys": Kind(
        lambda: {1: "a"},
        others=[{1.0: "a"}, {True: "a"}, {2: "a"}],
        is_node=True,
    ),
    "set": Kind(
        lambda: {1, "a"},
        others=[frozenset({1, "a"}), (1, "a"), {1}, {1, "b"}, set()],
        change=lambda x: x.add(5),
    ),
    "frozenset": Kind(lambda: frozenset({1, "a"}), others=[{1, "a"}, frozenset({1})]),
    "Module": Kind(
        lambda: Layer(1, 2),
        others=[
            Layer(1.0, 2),
            Layer(1, True),
            Layer(True, 2),
            Frozen(1),
            Layer(2, 2),
            Layer(1, 3),
        ],
        change=_set_fields,
        is_node=True,
    ),
    "node": Kind(
        lambda: Branch((1,), "a"),
        change=lambda x: setattr(x, "aux", "b"),
        others=[
            OtherBranch((1,), "a"),
            Branch((True,), "a"),
            Branch((2,), "a"),
            Branch((1,), "b"),
            Branch((), "a"),
        ],
        is_node=True,
    ),
    "frozen dataclass": Kind(
        lambda: Frozen(1),
        others=[Frozen(1.0), Frozen(True), Unhashable(1), Frozen(2), Frozen((1,))],
        change=lambda x: vars(x).update(value=99),
    ),
    "frozen dataclass with a list": Kind(
        lambda: Frozen([1]),
        others=[Frozen([1.0]), Frozen((1,)), Frozen([2])],
        change=lambda x: x.value.append(2),
    ),
    "registered as static": Kind(
        lambda: RegisteredStatic(1),
        others=[RegisteredStatic(1.0), Frozen(1), RegisteredStatic(2)],
        change=_set_fields,
    ),
    "dataclass": Kind(
        lambda: Unhashable(1),
        others=[Unhashable(1.0), Unhashable(True), Frozen(1), Unhashable(2)],
        change=_set_n,
    ),
    "attrs, frozen": Kind(
        lambda: AttrsFrozen(1),
        others=[AttrsFrozen(1.0), Attrs(1), AttrsFrozen(2)],
        change=_set_fields,
    ),
    "attrs": Kind(
        lambda: Attrs(1),
        others=[Attrs(1.0), Attrs(True), AttrsFrozen(1), Attrs(2)],
        change=_set_n,
    ),
    "class": Kind(lambda: Plain, others=["Plain", Hashed]),
    "function": Kind(lambda: square, others=[negative]),
    "lambda": Kind(lambda: _LAMBDAS[0], others=[_LAMBDAS[1]]),
    "enum member": Kind(lambda: Colour.RED, others=[1, Colour.BLUE]),
    "object": Kind(
        lambda: _PLAIN,
        others=[Plain(1)],
        change=lambda x: setattr(x, "n", object()),
        is_noticed=False,
    ),
    "JAX array": Kind(
        lambda: _ONE_ARRAY,
        others=[np.arange(3), (0, 1, 2), jnp.arange(3), jnp.arange(2), jnp.zeros(3)],
        only_static=True,
    ),
    "NumPy array": Kind(
        lambda: np.array([0.0, 1.0]),
        others=[
            np.array([0.0, 1.0], np.float32),
            np.array([[0.0, 1.0]]),
            [0.0, 1.0],
            np.array([-0.0, 1.0]),
            np.array([0.0, math.nan]),
            np.zeros(3),
        ],
        change=lambda x: x.fill(99),
        only_static=True,
    ),
    "NumPy scalar": Kind(
        lambda: np.float32(1),
        others=[
            1.0,
            np.float64(1),
            np.ones((), np.float32),
            np.int32(1),
            np.float32(2),
        ],
        only_static=True,
    ),
    "row of a structured array": Kind(
        lambda: np.ones(1, [("a", float)])[0],
        others=[np.zeros(1, [("a", float)])[0]],
        change=lambda x: x.fill(99),
        only_static=True,
    ),
    "dtype": Kind(
        lambda: np.dtype("f4"),
        others=[np.float32, "float32", np.dtype("f8")],
    ),
    "object with a hash": Kind(
        lambda: Hashed(1),
        others=[1, Frozen(1), Hashed(2)],
    ),
    "object with a constant hash": Kind(
        lambda: HashedByName(1),
        others=[Hashed(1)],
        is_noticed=False,
        change=lambda x: vars(x).update(value=99),
    ),
    "SimpleNamespace": Kind(
        lambda: types.SimpleNamespace(n=1),
        others=[
            types.SimpleNamespace(n=1.0),
            argparse.Namespace(n=1),
            types.SimpleNamespace(n=2),
            types.SimpleNamespace(m=1),
        ],
        change=_set_n,
    ),
    "argparse.Namespace": Kind(
        lambda: argparse.Namespace(n=[1]),
        others=[
            argparse.Namespace(n=[True]),
            types.SimpleNamespace(n=[1]),
            argparse.Namespace(n=[2]),
        ],
        change=lambda x: x.n.append(2),
    ),
    "UserDict": Kind(
        lambda: collections.UserDict(n=1),
        others=[collections.UserDict(n=1.0), collections.UserDict(n=2)],
        change=lambda x: x.update(n=3),
    ),
    "deque": Kind(
        lambda: collections.deque([1]),
        others=[
            collections.deque([1.0]),
            collections.deque([1], 2),
            [1],
            collections.deque([2]),
            collections.deque(),
        ],
        change=lambda x: x.append(2),
    ),
    "bytearray": Kind(
        lambda: bytearray(b"a"),
        others=[b"a", bytearray(b"b")],
        change=_set_item,
    ),
    "list subclass": Kind(
        lambda: ListSubclass([1]),
        others=[ListSubclass([1.0]), [1], ListSubclass([2])],
        change=_set_item,
    ),
    "dict subclass": Kind(
        lambda: DictSubclass(n=1),
        others=[DictSubclass(n=1.0), DictSubclass(n=2)],
        change=lambda x: x.update(n=3),
    ),
    "dict of its attributes": Kind(
        lambda: Attributes(n=1),
        others=[Attributes(n=1.0), DictSubclass(n=1), Attributes(n=2)],
        change=lambda x: x.update(n=3),
    ),
    "mapping proxy": Kind(
        lambda: types.MappingProxyType({"a": 1}),
        others=[
            types.MappingProxyType({"a": 1.0}),
            DictSubclass(a=1),
            types.MappingProxyType({"a": 2}),
        ],
        change=lambda x: gc.get_referents(x)[0].update(a=3),
    ),
    "pydantic": Kind(
        lambda: Pydantic(n=1),
        others=[Pydantic(n=1.0), Pydantic(n=2)],
        change=_set_n,
    ),
    "msgspec": Kind(lambda: Struct(1), others=[Struct(1.0), Struct(2)], change=_set_n),
    "msgspec, frozen": Kind(
        lambda: FrozenStruct(1), others=[Struct(1), FrozenStruct(2)]
    ),
    "ConfigDict": Kind(
        lambda: ConfigDict(n=1),
        others=[ConfigDict(n=1.0), ConfigDict(n=2)],
        change=_set_n,
    ),
}


# --- places ---


@dataclasses.dataclass
class Place:
    put: Callable[[Any], Any]
    take: Callable[[Any], Any]
    in_static_field: bool = False


PLACES = {
    "argument": Place(lambda v: v, lambda a: a),
    "list": Place(lambda v: [v], lambda a: a[0]),
    "dict": Place(lambda v: {"k": v}, lambda a: a["k"]),
    "dataclass": Place(Frozen, lambda a: a.value, in_static_field=True),
    "Module": Place(Inner, lambda a: a.value),
    "static field": Place(lambda v: Holder(X, v), lambda a: a.static, True),
    "static list": Place(lambda v: Holder(X, [v]), lambda a: a.static[0], True),
    "static dict": Place(lambda v: Holder(X, {"k": v}), lambda a: a.static["k"], True),
    "static Module": Place(
        lambda v: Holder(X, Inner(v)), lambda a: a.static.value, True
    ),
}


def _text(static):
    """What a function sees of a static: its type, and its parts."""
    name = type(static).__name__
    if isinstance(static, set | frozenset):
        return f"{name} {sorted(map(_text, static))}"
    if isinstance(static, dict):
        parts = [(_text(k), _text(v)) for k, v in static.items()]
        return f"{name} {parts}"
    if isinstance(static, list | tuple):
        return f"{name} {[_text(x) for x in static]}"
    if isinstance(static, Layer):
        return f"{name} {_text(static.n)} {_text(static.width)}"
    return f"{name} {static!r}"


class Calls:
    """Calls one jitted function, whose argument has a static at one place."""

    def __init__(self, place):
        self.place = place
        self.jitted, self.traces = count_traces(
            lambda x, argument: (x, _text(place.take(argument)))
        )

    def __call__(self, static):
        """The number of traces after a call; `seen` is the text that it returned."""
        out, self.seen = self.jitted(X, self.place.put(static))
        assert out.tolist() == [1.0, 1.0]
        return len(self.traces)


# These are combined with all others. Random programs draw the rest: tests/differential.
_PLACES = {"argument", "static field"}
_KINDS = {"zero", "tuple", "list", "Module", "frozen dataclass with a list", "object"}


def _cases(*columns):
    """The rows in places where the static is not traced."""
    return [
        pytest.param(kind, place, id=f"{place_name}-{name}")
        for place_name, place in PLACES.items()
        for name, kind in KINDS.items()
        if (place_name in _PLACES or name in _KINDS)
        and not (kind.only_static and not place.in_static_field)
        and all(getattr(kind, column) for column in columns)
    ]


@pytest.mark.parametrize(("kind", "place"), _cases())
def test_equal_statics_share_a_trace(kind, place):
    """A static that is equal to an earlier one does not retrace."""
    call = Calls(place)
    assert [call(kind.make()) for _ in range(3)] == [1, 1, 1]
    assert call.seen == _text(kind.make())


@pytest.mark.parametrize(("kind", "place"), _cases())
def test_other_statics_retrace(kind, place):
    """Statics of another type, equal by `==`, or of another value: a trace for each.

    They are kept.
    """
    statics = [kind.make(), *kind.others]
    call = Calls(place)
    for again in (False, True):
        for i, static in enumerate(statics):
            assert call(static) == (len(statics) if again else i + 1), static
            assert call.seen == _text(static)


@pytest.mark.parametrize(("kind", "place"), _cases("change"))
def test_a_static_changed_in_place(kind, place):
    """A change in place retraces, unless the static is compared by identity or hash."""
    call, static = Calls(place), kind.make()
    assert [call(static), call(static)] == [1, 1]
    was = call.seen
    kind.change(static)
    assert call(static) == (2 if kind.is_noticed else 1)
    assert call.seen == (_text(static) if kind.is_noticed else was)


@pytest.mark.parametrize(("kind", "place"), _cases("change", "is_noticed"))
def test_an_equal_static_after_the_first_one_was_changed(kind, place):
    """A trace ends when a mutable static that it was made with has changed.

    A pytree in an argument is not such: a trace is made with a copy of it.
    """
    call, static = Calls(place), kind.make()
    call(static)
    kind.change(static)
    is_copied = kind.is_node and not place.in_static_field
    assert call(kind.make()) == (1 if is_copied else 2)
    assert call.seen == _text(kind.make())
    assert call(kind.make()) == (1 if is_copied else 2)


@pytest.mark.parametrize(
    "make", [dict, functools.partial(collections.defaultdict, int)]
)
def test_the_order_of_a_static_dictionary_counts(make):
    """Static dictionaries with other orders differ; those in arguments are sorted."""
    one, other = make({"a": 1, "b": 2}), make({"b": 2, "a": 1})
    call = Calls(PLACES["static field"])
    assert [call(one), call(other), call(one)] == [1, 2, 2]
    call = Calls(PLACES["argument"])
    assert [call(one), call(other)] == [1, 1]


def test_members_of_a_static_set_are_compared_by_equality():
    """As Python finds them: 1, 1.0 and True are one member."""
    call = Calls(PLACES["static field"])
    assert [call({1}), call({1.0}), call({True})] == [1, 1, 1]


@pytest.mark.parametrize("place", ["static field", "static Module"])
def test_arrays_of_a_static_module(place):
    """A static Module is the same if its arrays are the same objects."""
    call, weight = Calls(PLACES[place]), jnp.ones(2)
    statics = [Layer(weight), Layer(weight), Layer(jnp.ones(2))]
    assert [call(x) for x in statics] == [1, 1, 2]


VIEWS = {
    "whole": lambda x: x,
    "strided": lambda x: x[::2],
    "reversed": lambda x: x[::-1],
    "transposed": lambda x: x.reshape(2, 3).T[1],
    "scalar": lambda x: x[2:3].reshape(()),
}
DTYPES = ("float16", "float32", "float64", "complex128", "int8", "int64", "bool")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_trace_has_the_present_values_of_a_static_array(dtype, view):
    """A static array changed in place is computed with as it is now.

    (JAX finds a converted array again by its identity.)
    """
    buffer = np.arange(6).astype(dtype)
    array = VIEWS[view](buffer)

    def first(holder):
        return jnp.where(holder.x[0] > 0, holder.static, holder.static)

    def second(holder):
        return jnp.stack([holder.static, first(holder)])[1]

    functions = [eqx_fastjit.filter_jit(first), eqx_fastjit.filter_jit(second)]
    for value in (None, 0, 1, 3, 0):
        if value is not None:
            buffer[...] = np.array(value).astype(dtype)
        # The second one is traced first, alone; then each while the other has a trace.
        for function in functions[1:] if value is None else functions:
            out = function(Holder(X, array))
            assert np.array_equal(out, array.astype(out.dtype)), (value, out)


def test_a_class_attribute_written_before_each_call():
    """Counting something in an attribute of a class does not retrace."""

    class Counted(eqx.Module):
        calls = 0
        w: object

        def __call__(self, x):
            return x * self.w

    model = Counted(X)
    f, traces = count_traces(lambda m, x: m(x))
    for i in range(20):
        Counted.calls = i
        assert f(model, X).tolist() == [1.0, 1.0]
    assert len(traces) == 1


def test_keys_that_are_moved_or_made_again():
    """Each value goes to its key, and an equal dictionary shares the trace."""
    f, traces = count_traces(lambda tree: {k: 2 * x for k, x in tree.items()})
    tree = {"weight": X, "bias": X + 1, "scale": X + 2}
    for i in range(12):
        key = list(tree)[i % 3]
        new = "".join(key) if i % 2 else key
        tree[new] = tree.pop(key) + 1
        out = f(tree)
        assert out.keys() == tree.keys()
        assert all(jnp.array_equal(out[k], 2 * x) for k, x in tree.items())
    assert len(traces) == 1


# --- classes that are registered after their first use ---


def _as_node(cls):
    jax.tree_util.register_pytree_node(
        cls, lambda p: ((p.x,), None), lambda _, parts: cls(*parts)
    )


def _as_dataclass(cls):
    jax.tree_util.register_dataclass(cls, ["x"], [])


AllEqual = type("AllEqual", (), {"__eq__": lambda x, y: True, "__hash__": lambda x: 1})


@pytest.mark.parametrize("register", [_as_node, _as_dataclass])
@pytest.mark.parametrize(
    "around", [lambda p: p, lambda p: [{"b": (p, X), "a": p}], Inner]
)
@pytest.mark.parametrize(
    ("base", "eq"), [(object, False), (object, True), (AllEqual, False)]
)
def test_a_class_registered_after_its_first_use(register, around, base, eq):
    """Each call computes with its own arrays, equal or not, and all share a trace."""

    @dataclasses.dataclass(eq=eq, frozen=True)
    class Late(base):
        x: object = dataclasses.field(compare=False)

    def doubled(tree):
        leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Late))
        return [p.x * 2 for p in leaves if isinstance(p, Late)]

    f, traces = count_traces(doubled)
    f(around(Late(X)))
    register(Late)
    del traces[:]
    compiled = f.lower(around(Late(X))).compile()
    for i in range(4):
        assert f(around(Late(X * i)))[0].tolist() == [2 * i, 2 * i]
        assert compiled(around(Late(X * i)))[0].tolist() == [2 * i, 2 * i]
    assert len(traces) == 1


# --- what is read ---


class CountedReads(np.ndarray):
    """An array that notes when all of it is read."""

    reads: ClassVar[list] = []

    def __reduce_ex__(self, protocol):
        CountedReads.reads.append(id(self))
        return super().__reduce_ex__(protocol)


def test_a_cache_miss_reads_no_array_of_other_functions():
    """A static array of NumPy is only read for calls that have it."""

    def compiled_for(array):
        f = eqx_fastjit.filter_jit(lambda holder: holder.x + holder.static)
        f(Holder(X, array))
        return f

    arrays = [np.ones(2).view(CountedReads) for _ in range(4)]
    functions = [compiled_for(array) for array in arrays[:3]]
    CountedReads.reads.clear()
    functions.append(compiled_for(arrays[3]))
    assert set(CountedReads.reads) == {id(arrays[3])}
