"""Statics of every kind that people put into their modules.

Each is created from a number. Equal numbers give values that are equal, and not
identical where the type allows that.
"""

import dataclasses
import enum
import functools as ft
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np


class Color(enum.Enum):
    red = 0
    green = 1
    blue = 2


class Order(enum.IntEnum):
    first = 0
    second = 1
    third = 2


class Padding(enum.StrEnum):
    same = "same"
    valid = "valid"
    full = "full"


class Window(NamedTuple):
    """A namedtuple as a static."""

    size: int
    stride: int


@dataclasses.dataclass(frozen=True)
class Config:
    """A hashable configuration."""

    width: int
    rate: float
    name: str
    inner: Any = None


@dataclasses.dataclass
class MutableConfig:
    """A configuration that is compared by value and is not hashable."""

    width: int
    name: str


class Rule(eqx.Module):
    """A Module without arrays."""

    n: int
    name: str = eqx.field(static=True)


class Activation:
    """An object compared by identity, whose bound method is created at each access."""

    def __init__(self, slope: float):
        self.slope = slope

    def apply(self, x: Any) -> Any:
        return x * self.slope


def leaky(x: Any, slope: float) -> Any:
    return jnp.where(x > 0, x, x * slope)


# These are equal only to themselves, so a program creates them once at the top.
@ft.cache
def _partial(i: int) -> Any:
    return ft.partial(leaky, slope=i + 0.5)


@ft.cache
def _object(i: int) -> Any:
    return Activation(i + 0.5)


def _one_of(*values: Any) -> Callable[[int], Any]:
    return lambda i: values[i % len(values)]


# Numbers start at 1,000, because CPython caches small integers.
HASHABLE: dict[str, Callable[[int], Any]] = {
    "int": lambda i: 1000 + i,
    "float": lambda i: i + 0.5,
    "bool": lambda i: i % 2 == 0,
    "complex": lambda i: complex(i, 0.5),
    "str": lambda i: f"name{i}",
    "bytes": lambda i: b"name%d" % i,
    "enum": _one_of(*Color),
    "int enum": _one_of(*Order),
    "str enum": _one_of(*Padding),
    "frozen dataclass": lambda i: Config(1000 + i, i + 0.5, f"c{i}"),
    "nested dataclass": lambda i: Config(1, 0.5, "c", Config(i, 0.5, "d", (1, i))),
    "frozenset": lambda i: frozenset({"a", f"b{i}"}),
    "function": _one_of(jnp.tanh, jax.nn.relu, jax.nn.gelu, leaky),
    "partial": _partial,
    "object": _object,
    "bound method": lambda i: _object(i).apply,
    "class": _one_of(Config, Rule, Activation),
    "dtype": _one_of(jnp.float32, jnp.bfloat16, jnp.int32),
    "numpy dtype": lambda i: np.dtype(("float32", "int32", "float16")[i % 3]),
    "range": lambda i: range(1000 + i),
    "path": lambda i: pathlib.PurePosixPath(f"a/b{i}"),
    "shape struct": lambda i: jax.ShapeDtypeStruct((i + 1,), jnp.float32),
    "treedef": lambda i: jtu.tree_structure([0] * (i + 1)),
    "ellipsis": lambda i: ...,
}
# Not possible as pytree leaves: these are nodes or not hashable.
IN_FIELDS: dict[str, Callable[[int], Any]] = {
    "None": lambda i: None,
    "tuple": lambda i: (8, 1000 + i),
    "nested tuple": lambda i: ((1, i), ("a", i + 0.5), ()),
    "namedtuple": lambda i: Window(1000 + i, 1),
    "partition spec": lambda i: jax.sharding.PartitionSpec("batch", None, f"a{i}"),
    "slice": lambda i: slice(0, 1000 + i),
    "module": lambda i: Rule(1000 + i, f"r{i}"),
    "list": lambda i: [1000 + i, "a"],
    "dict": lambda i: {"size": 1000 + i, "name": f"d{i}"},
    "set": lambda i: {"a", f"b{i}"},
    "mutable dataclass": lambda i: MutableConfig(1000 + i, f"m{i}"),
}
STATICS = {**HASHABLE, **IN_FIELDS}


def _change_dataclass(x: MutableConfig, new: MutableConfig) -> None:
    x.width, x.name = new.width, new.name


def _change_in_place(x: Any, new: Any) -> None:
    x.clear()
    x.update(new)


def _change_list(x: list[Any], new: list[Any]) -> None:
    x[:] = new


MUTABLE: dict[str, Callable[[Any, Any], None]] = {
    "list": _change_list,
    "dict": _change_in_place,
    "set": _change_in_place,
    "mutable dataclass": _change_dataclass,
}
