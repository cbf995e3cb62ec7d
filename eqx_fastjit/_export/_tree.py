"""Pytrees and statics as data: one line for each part, outermost first.

A line has the path of the part, its kind, what there is to know about it, and how many
parts of its own follow:

    ["model", "instance", ["pkg:Model", "weight", "scale"], 2]
    ["model.weight", "array", 0, 0]
    ["model.scale", "float", "0.5", 0]

Two values are the same, by the contract of `_statics.py`, if their lines are equal. So
the arguments of a call are only compared, and only the result is built from lines.
"""

import dataclasses
import enum
import functools
import itertools
import json
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from eqx_fastjit._statics import generated_fields, partition, reader_of, state_of
from eqx_fastjit._texts import describe_static

from ._format import ExportFileError
from ._names import name_of, Names


Line = list[Any]


class ExportError(ValueError):
    """A function cannot be exported for these arguments."""


@dataclasses.dataclass(frozen=True)
class ArrayRef:
    """Stands for an array of a tree, by its number."""

    number: int


def split(tree: Any) -> tuple[list[Any], Any]:
    """The arrays of a tree, in JAX's order, and a tree with `ArrayRef`s for them."""
    arrays, structure = partition(tree)
    return arrays, structure.rebuild([ArrayRef(i) for i in range(len(arrays))])


# Values of these types are themselves in JSON, or a text: how to write and read them.
_JSON: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    **{x: (x, x) for x in (bool, int, str)},
    **{x: (repr, x) for x in (float, complex)},
    types.EllipsisType: (repr, lambda _: ...),
    types.NoneType: (lambda _: None, lambda _: None),
    bytes: (bytes.hex, bytes.fromhex),
}
_FROM_JSON = {x.__name__: read for x, (_, read) in _JSON.items()}
# The readers of values that are written as their state.
_BY_STATE = ("struct", "numpy", "scalar", "hashed", "state")
_SEQUENCES: dict[str, type] = {x.__name__: x for x in (tuple, list, set, frozenset)}

_NOT_IMPORTABLE = (
    "it cannot be imported by its name. Define it in a module, outside of any function"
)
_IDENTITY = (
    "it is compared by identity, so another process could not pass an equal one. Use a "
    "function of a module, or a frozen dataclass"
)
_RESULT = "values of this type cannot be built from a file. Use a frozen dataclass"


class Encoder:
    """Writes values as lines. Raises `ExportError` with the path of what it cannot.

    Only what is `to_build` can be built again; other values are only compared.
    """

    def __init__(self, to_build: bool = False):
        self.to_build = to_build
        self.lines: list[Line] = []
        # The classes and functions that were written, by name.
        self.objects: dict[str, Any] = {}

    def write(self, x: Any, path: str) -> list[Line]:
        """Add the lines of a value; returns all."""
        cls = type(x)
        if cls in _JSON:
            self._line(path, cls.__name__, _JSON[cls][0](x))
        elif cls is ArrayRef:
            self._line(path, "array", x.number)
        elif cls in _SEQUENCES.values():
            if isinstance(x, set | frozenset):  # the same each time
                x = sorted(x, key=lambda y: json.dumps(Encoder().write(y, path)))
            parts = [(f"{path}[{i}]", y) for i, y in enumerate(x)]
            self._line(path, cls.__name__, None, parts)
        elif cls is dict:
            pairs = [(f"{path}[{describe_static(k)}]", (k, v)) for k, v in x.items()]
            self._line(path, "dict", None, [(p, y) for p, pair in pairs for y in pair])
        else:
            self._write_other(x, reader_of(x), path)
        return self.lines

    def _line(
        self, path: str, kind: str, about: Any, parts: Sequence[tuple[str, Any]] = ()
    ) -> None:
        self.lines.append([path, kind, about, len(parts)])
        for below, part in parts:
            self.write(part, below)

    def _write_other(self, x: Any, reader: Any, path: str) -> None:
        if reader.name in ("module", "fields"):
            get = object.__getattribute__
            parts = [(f"{path}.{name}", get(x, name)) for name in reader.names]
            self._line(path, "instance", [self._class(x, path), *reader.names], parts)
        elif reader.name in ("node", "tuple"):  # a named tuple
            children, treedef = jtu.tree_flatten_with_path(x, lambda y: y is not x)
            parts = [(path + jtu.keystr(key), child) for key, child in children]
            aux = (path, treedef.node_data()[1])
            self._line(path, "node", self._class(x, path), [aux, *parts])
        elif isinstance(x, np.dtype) and x.names is None and np.dtype(x.name) == x:
            self._line(path, "dtype", x.name)
        elif isinstance(x, enum.Enum) and type(x).__members__.get(x.name) is x:
            self._line(path, "member", [self._class(x, path), x.name])
        elif type(x) is functools.partial:
            names = ("func", "args", "keywords")
            parts = [(f"{path}.{name}", getattr(x, name)) for name in names]
            self._line(path, "partial", None, parts)
        elif not isinstance(x, jax.Array) and (name := name_of(x)) is not None:
            self.objects[name] = x
            self._line(path, "name", name)
        elif reader.name not in _BY_STATE or (state := state_of(x)) is x:
            is_function = callable(x) and hasattr(x, "__qualname__")
            raise _refused(x, path, _NOT_IMPORTABLE if is_function else _IDENTITY)
        elif self.to_build:
            raise _refused(x, path, _RESULT)
        else:
            self._line(path, "state", self._class(x, path), [(path, state)])

    def _class(self, x: Any, path: str) -> str:
        """The name of a value's class."""
        name = name_of(type(x))
        if name is None:
            raise _refused(x, path, f"its class: {_NOT_IMPORTABLE}")
        self.objects[name] = type(x)
        return name


def _refused(x: Any, path: str, why: str) -> ExportError:
    return ExportError(f"`{path}` cannot be exported: {describe_static(x)}: {why}.")


def show_line(line: Line) -> str:
    """What a line says: `array`, `int 2`, `instance pkg:Config`."""
    _, kind, about, n_parts = line
    if kind == "array" or about is None:
        return kind
    name = about[0] if n_parts and type(about) is list else about
    return f"{kind} {name if n_parts else describe_static(name)}"


def difference(then: Sequence[Line], now: Sequence[Line]) -> str | None:
    """The first difference between two trees, in words; `None` if there is none."""
    for old, new in itertools.zip_longest(then, now):
        if old is None or new is None or old[0] != new[0]:
            paths = ["nothing" if x is None else f"`{x[0]}`" for x in (old, new)]
            return f"expected {paths[0]}, got {paths[1]}"
        if old != new:
            return f"`{old[0]}` was {show_line(old)} and is now {show_line(new)}"
    return None


# --- from lines -----------------------------------------------------------------------


def build(lines: Iterator[Line], arrays: Sequence[Any], names: Names) -> Any:
    """The value that the next lines are, with these arrays in it.

    Raises `ExportFileError`, or what Python raises for nonsense.
    """
    _, kind, about, n_parts = next(lines)
    parts = [build(lines, arrays, names) for _ in range(n_parts)]
    if kind in _FROM_JSON:
        return _FROM_JSON[kind](about)
    if kind == "array":
        return arrays[about]
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](parts)
    if kind == "dict":
        return dict(zip(parts[::2], parts[1::2], strict=True))
    if kind == "dtype":
        return jnp.dtype(about)
    if kind == "partial":
        return functools.partial(parts[0], *parts[1], **parts[2])
    found = names.get(about if type(about) is str else about[0])
    if kind == "name":
        return found
    if not isinstance(found, type):
        raise ExportFileError(f"{found!r} is not a class")
    if kind == "member":
        return found.__members__[about[1]]
    if kind == "node":
        leaves = [jtu.tree_structure(0)] * (n_parts - 1)
        make = jtu.PyTreeDef.from_node_data_and_children
        treedef = make(jtu.default_registry, (found, parts[0]), leaves)
        return jtu.tree_unflatten(treedef, parts[1:])
    if kind != "instance":
        raise ExportFileError(f"its header is invalid ({kind!r})")
    if not issubclass(found, eqx.Module) and generated_fields(found) is None:
        raise ExportFileError(f"{found!r} is not a Module or a dataclass")
    out = object.__new__(found)
    for name, value in zip(about[1:], parts, strict=True):
        object.__setattr__(out, name, value)
    return out
