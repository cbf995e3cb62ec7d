"""Arguments, and descriptions of arguments.

A description is a hashable value. Arguments created from equal descriptions make the
same call and must share a trace. If their descriptions differ in more than the values
of arrays, they must not. Descriptions thus define when two calls are the same without
use of the library's own static keys.
"""

import abc
import collections
import dataclasses
import datetime
import enum
import fractions
import functools as ft
import math
import pathlib
import types
import typing
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np


# --- statics -------------------------------------------------------------------------


class Color(enum.Enum):
    red = 1
    blue = 2


class Number(enum.IntEnum):
    zero = 0
    one = 1


class Word(enum.StrEnum):
    a = "a"


class Bits(enum.Flag):
    one = 1


class MyInt(int):
    pass


class MyFloat(float):
    pass


class MyStr(str):
    pass


class MyTuple(tuple):
    pass


@dataclasses.dataclass(frozen=True)
class Config:
    a: Any


@dataclasses.dataclass(frozen=True)
class OtherConfig:
    a: Any


@dataclasses.dataclass
class Unhashable:
    a: int = 1


class Opaque:
    """An object equal only to itself."""

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return f"Opaque({self.name})"


class ByValue:
    """An object that is compared by value."""

    def __init__(self, n: Any):
        self.n = n

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.n == other.n

    def __hash__(self) -> int:
        return hash(self.n)

    def __repr__(self) -> str:
        return f"ByValue({self.n!r})"


_OPAQUE = {name: Opaque(name) for name in "ab"}


def twice(x: Any) -> Any:
    return x * 2


# Statics that are easily confused are in one group. Each is created anew, so equal ones
# need not be identical.
_GROUPS: list[dict[str, Callable[[], Any]]] = [
    {
        "0": lambda: 0,
        "False": lambda: False,
        "0.0": lambda: 0.0,
        "-0.0": lambda: -0.0,
        "0j": lambda: 0j,
        "complex(-0.0, 0)": lambda: complex(-0.0, 0.0),
        "complex(0, -0.0)": lambda: complex(0.0, -0.0),
        "Number.zero": lambda: Number.zero,
        "MyFloat(-0.0)": lambda: MyFloat(-0.0),
        "MyFloat(0.0)": lambda: MyFloat(0.0),
    },
    {
        "1": lambda: 1,
        "True": lambda: True,
        "1.0": lambda: 1.0,
        "1+0j": lambda: 1 + 0j,
        "Number.one": lambda: Number.one,
        "MyInt(1)": lambda: MyInt(1),
        "MyFloat(1)": lambda: MyFloat(1),
        "Fraction(1)": lambda: fractions.Fraction(1),
        "Bits.one": lambda: Bits.one,
    },
    {
        "2": lambda: 2,
        "2.0": lambda: float("2.0"),
        "2**70": lambda: int("2") ** 70,
        "2.0**70": lambda: float("2") ** 70,
        "-1": lambda: -1,
        "-2": lambda: -2,  # has the same hash as -1
        "inf": lambda: float("inf"),
        "-inf": lambda: float("-inf"),
        "nan": lambda: float("nan"),
        "complex(nan, 0)": lambda: complex(float("nan"), 0),
        "1e300": lambda: float("1e300"),
    },
    {
        "'a'": lambda: "a",
        "b'a'": lambda: b"a",
        "Word.a": lambda: Word.a,
        "MyStr('a')": lambda: MyStr("a"),
        "'1'": lambda: "1",
        "''": lambda: "",
        "long": lambda: "".join(["x"] * 2000),
        "longer": lambda: "".join(["x"] * 2001),
    },
    {
        "Color.red": lambda: Color.red,
        "Color.blue": lambda: Color.blue,
        "Color": lambda: Color,
        "Opaque a": lambda: _OPAQUE["a"],
        "Opaque b": lambda: _OPAQUE["b"],
    },
    {
        "Config(1)": lambda: Config(1),
        "Config(True)": lambda: Config(True),
        "Config(1.0)": lambda: Config(1.0),
        "Config(0.0)": lambda: Config(0.0),
        "Config(-0.0)": lambda: Config(-0.0),
        "Config(nan)": lambda: Config(float("nan")),
        "Config((1, 2))": lambda: Config((1, 2)),
        "Config((1, 2.0))": lambda: Config((1, 2.0)),
        "Config(Config(1))": lambda: Config(Config(1)),
        "OtherConfig(1)": lambda: OtherConfig(1),
    },
    {
        "ByValue(1)": lambda: ByValue(1),
        "ByValue(2)": lambda: ByValue(2),
        "Fraction(1, 2)": lambda: fractions.Fraction(1, 2),
        "path": lambda: pathlib.PurePosixPath("a"),
        "uuid": lambda: uuid.UUID(int=1),
        "timedelta": lambda: datetime.timedelta(1),
    },
    {
        "sin": lambda: jnp.sin,
        "cos": lambda: jnp.cos,
        "twice": lambda: twice,
        "len": lambda: len,
        "jax.jit": lambda: jax.jit,
        "math": lambda: math,
    },
    {
        "int": lambda: int,
        "float": lambda: float,
        "jnp.float32": lambda: jnp.float32,
        "np.float32": lambda: np.float32,
        "dtype float32": lambda: np.dtype("float32"),
        "dtype int32": lambda: np.dtype("int32"),
        "dtype bfloat16": lambda: jnp.dtype("bfloat16"),
    },
    {
        "...": lambda: ...,
        "NotImplemented": lambda: NotImplemented,
        "range(3)": lambda: range(3),
        "range(1, 4)": lambda: range(1, 4),
        "frozenset({1})": lambda: frozenset({1}),
        "frozenset({True})": lambda: frozenset({True}),
        "frozenset({1.0})": lambda: frozenset({1.0}),
        "frozenset()": lambda: frozenset(),
        "MyTuple": lambda: MyTuple((1, 2)),
    },
]
_UNHASHABLE: dict[str, Callable[[], Any]] = {
    "{1}": lambda: {1},
    "bytearray": lambda: bytearray(b"a"),
    "Unhashable": lambda: Unhashable(),
    "[{1}]": lambda: [{1}],
}
_MAKE = {
    name: make for group in [*_GROUPS, _UNHASHABLE] for name, make in group.items()
}
GROUPS = tuple([tuple(group) for group in _GROUPS])
GROUP_OF = {name: group for group in GROUPS for name in group}
UNHASHABLE = tuple(_UNHASHABLE)


# --- descriptions --------------------------------------------------------------------


class Description(abc.ABC):
    """What an argument is."""

    @abc.abstractmethod
    def make(self, make: Callable[["Description"], Any]) -> Any:
        """Create such an argument. `make` creates its parts."""

    def key(self) -> Any:
        """The description without the values of arrays."""
        return self


@dataclasses.dataclass(frozen=True)
class Static(Description):
    name: str

    def make(self, make: Any) -> Any:
        return _MAKE[self.name]()


@dataclasses.dataclass(frozen=True)
class Array(Description):
    # `"jax"`, `"numpy"`, or `"scalar"` for NumPy scalars
    library: str
    dtype: str
    shape: tuple[int, ...]
    weak: bool
    value: int

    def make(self, make: Any) -> Any:
        if self.dtype == "float0":
            return np.zeros(self.shape, jax.dtypes.float0)
        if self.library == "scalar":
            return jnp.dtype(self.dtype).type(self.value)
        size = math.prod(self.shape)
        array = (np.arange(size) + self.value).reshape(self.shape)
        array = array.astype(self.dtype)
        if self.library == "numpy":
            return array
        if self.weak:
            return jax.lax.full(self.shape, _WEAK[self.dtype](self.value))
        return jnp.asarray(array)

    def key(self) -> Any:
        # As traced: NumPy arrays become JAX arrays, with 32 bits.
        dtype = self.dtype
        if dtype != "float0":
            dtype = str(jax.dtypes.canonicalize_dtype(dtype))
        weak = self.weak and self.library == "jax"
        shape = () if self.library == "scalar" else self.shape
        return "array", dtype, shape, weak


_WEAK: dict[str, Callable[[int], Any]] = {"float32": float, "int32": int}


@dataclasses.dataclass(frozen=True)
class Key(Description):
    impl: str
    seed: int

    def make(self, make: Any) -> Any:
        return jax.random.key(self.seed, impl=self.impl)

    def key(self) -> Any:
        return "key", self.impl


@dataclasses.dataclass(frozen=True)
class Tree(Description):
    """A node. The meaning of `info` depends on `kind`."""

    kind: str
    children: tuple[Description, ...]
    info: Any = None

    def make(self, make: Any) -> Any:
        if self.kind == "shared":
            child = make(self.children[0])
            return [child, child]
        return NODES[self.kind](self.info, [make(child) for child in self.children])

    def key(self) -> Any:
        pairs: Any = [child.key() for child in self.children]
        info = self.info
        if self.kind in ("dict", "defaultdict"):
            # JAX sorts the keys.
            pairs = zip(info, pairs, strict=True)
            info = None
            pairs = sorted([(_key_name(k), child) for k, child in pairs], key=_first)
        return self.kind, info, tuple(pairs)


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def _key_name(name: str) -> tuple[str, str]:
    return type(KEYS[name]).__name__, repr(KEYS[name])


# --- nodes ---------------------------------------------------------------------------


class P(typing.NamedTuple):
    a: Any
    b: Any


class Q(typing.NamedTuple):
    a: Any
    b: Any


@jtu.register_pytree_node_class
class Registered:
    def __init__(self, x: Any, aux: Any):
        self.x = x
        self.aux = aux

    def tree_flatten(self) -> Any:
        return (self.x,), self.aux

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> "Registered":
        return cls(*children, aux)


class Reversed:
    """A node whose children are in a different order from its attributes."""

    def __init__(self, a: Any, b: Any):
        self.a = a
        self.b = b


jtu.register_pytree_with_keys(
    Reversed,
    lambda r: (((jtu.GetAttrKey("b"), r.b), (jtu.GetAttrKey("a"), r.a)), None),
    lambda _, children: Reversed(children[1], children[0]),
)


@jtu.register_dataclass
@dataclasses.dataclass
class Data:
    a: Any
    tag: Any = dataclasses.field(metadata={"static": True})


# Keys of dictionaries, by name. Some are equal to each other.
KEYS: dict[str, Any] = {
    "'a'": "a",
    "'b'": "b",
    "MyStr('b')": MyStr("b"),
    "0": 0,
    "1": 1,
    "2": 2,
    "True": True,
    "1.0": 1.0,
    "(1, 2)": (1, 2),
    "(1, 2.0)": (1, 2.0),
}


class ModuleInfo(typing.NamedTuple):
    """A Module class. Classes that differ only in `tag` have the same fields."""

    dynamic: tuple[str, ...]
    static: tuple[str, ...]
    tag: int
    # `"plain"`, `"derived"` (from a class with the first field) or `"generic"`
    # (subscripted when it is created, so that instances get an `__orig_class__`)
    kind: str


_T = typing.TypeVar("_T")


@ft.cache
def module_class(info: ModuleInfo) -> type[eqx.Module]:
    names = [*info.dynamic, *info.static]
    annotations = dict.fromkeys(names, Any)
    fields = {name: eqx.field(static=True) for name in info.static}
    bases: tuple[Any, ...] = (eqx.Module,)
    if info.kind == "derived" and info.dynamic:
        first = info.dynamic[0]
        del annotations[first]
        base = type("Base", bases, {"__annotations__": {first: Any}})
        bases = (base,)
    elif info.kind == "generic":
        bases = (eqx.Module, typing.Generic[_T])
    namespace = {"__annotations__": annotations, **fields}
    return types.new_class(
        f"Module{info.tag}", bases, exec_body=lambda ns: ns.update(namespace)
    )


def forget_module_classes() -> None:
    module_class.cache_clear()


def _make_module(info: ModuleInfo, children: list[Any]) -> Any:
    cls: Any = module_class(info)
    if info.kind == "generic":
        cls = cls[int]
    names = [*info.dynamic, *info.static]
    return cls(**dict(zip(names, children, strict=True)))


NODES: dict[str, Callable[[Any, list[Any]], Any]] = {
    "none": lambda _, c: None,
    "list": lambda _, c: c,
    "tuple": lambda _, c: tuple(c),
    "P": lambda _, c: P(*c),
    "Q": lambda _, c: Q(*c),
    "dict": lambda keys, c: dict(zip([KEYS[k] for k in keys], c, strict=True)),
    "OrderedDict": lambda keys, c: collections.OrderedDict(
        zip([KEYS[k] for k in keys], c, strict=True)
    ),
    "defaultdict": lambda keys, c: collections.defaultdict(
        int, zip([KEYS[k] for k in keys], c, strict=True)
    ),
    "Registered": lambda aux, c: Registered(c[0], _MAKE[aux]()),
    "Reversed": lambda _, c: Reversed(*c),
    "Data": lambda tag, c: Data(c[0], _MAKE[tag]()),
    "eqx.Partial": lambda _, c: eqx.Partial(twice, *c),
    "jtu.Partial": lambda _, c: jtu.Partial(twice, *c),
    "module": _make_module,
    # Used in static fields only: the values themselves, not pytrees.
    "static list": lambda _, c: c,
    "static tuple": lambda _, c: tuple(c),
    "static dict": lambda keys, c: dict(zip([KEYS[k] for k in keys], c, strict=True)),
    "static set": lambda _, c: set(c),
}
ONE_CHILD = ("Registered", "Data")
TWO_CHILDREN = ("P", "Q", "Reversed")
WITH_KEYS = ("dict", "OrderedDict", "defaultdict")


def parts(x: Any) -> Iterator[tuple[str, Any]] | None:
    """The named parts of a node of this module; `None` for a leaf."""
    if isinstance(x, collections.OrderedDict):
        return ((f"{type(k).__name__} {k!r}", v) for k, v in x.items())
    if isinstance(x, dict):
        pairs = [(f"{type(k).__name__} {k!r}", v) for k, v in x.items()]
        return iter(sorted(pairs, key=_first))
    if type(x) is MyTuple:
        return None
    if isinstance(x, list | tuple):
        return ((str(i), v) for i, v in enumerate(x))
    if isinstance(x, jtu.Partial):
        return iter([("func", x.func), ("args", x.args), ("keywords", x.keywords)])
    if isinstance(x, eqx.Module):
        # Only fields: Equinox drops or adds other attributes (`__orig_class__`,
        # `__doc__`) when it flattens.
        return ((f.name, getattr(x, f.name)) for f in dataclasses.fields(x))
    if isinstance(x, Registered | Reversed | Data):
        return iter(sorted(vars(x).items()))
    return None


def show_static(x: Any) -> str:
    """A text that differs between different statics."""
    if callable(x):
        text = f"{getattr(x, '__module__', '')}.{getattr(x, '__qualname__', x)}"
    else:
        text = repr(x)
    return f"{type(x).__name__} {text}"


def is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic)


def show(x: Any) -> str:
    """A text of what a function sees of an argument while it is traced."""
    if is_array(x):
        weak = "~" if getattr(getattr(x, "aval", None), "weak_type", False) else ""
        return f"{weak}{x.dtype}{list(x.shape)}"
    named = parts(x)
    if named is None:
        return show_static(x)
    inside = ", ".join([f"{name}: {show(part)}" for name, part in named])
    name = type(x).__name__
    if type(x) is collections.defaultdict:
        name = f"{name} of {x.default_factory}"
    return f"{name}({inside})"
