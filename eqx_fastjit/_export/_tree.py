"""Pytrees and statics as data: one line for each part, outermost first.

A line has the path of the part, its kind, what there is to know about it, and how many
of the following lines are its own parts:

    ["model", "instance", ["pkg:Model", "weight", "config"], 2]
    ["model.weight", "array", 0, 0]
    ["model.config", "instance", ["pkg:Config", "scale"], 1]
    ["model.config.scale", "float", "0.5", 0]

Two values are the same, by the contract of `_statics.py`, if their lines are equal. So
the arguments of a call are only compared; what is built from lines is the result.
Instances are made without running their `__init__`.
"""

import dataclasses
import enum
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from eqx_fastjit._plan import partition
from eqx_fastjit._statics import generated_fields, reader_of

from ._format import ExportFileError
from ._names import name_of, Names


Line = list[Any]


class ExportError(ValueError):
    """A function cannot be exported for these arguments."""


@dataclasses.dataclass(frozen=True)
class ArrayRef:
    """Stands for an array of a tree, by its number."""

    number: int


@dataclasses.dataclass(frozen=True)
class DefaultRef:
    """Stands for the default of a parameter, which is not in the file."""

    parameter: str

    def __repr__(self) -> str:
        return "..."


def split(tree: Any) -> tuple[list[Any], Any]:
    """The arrays of a tree, in JAX's order, and the tree with an `ArrayRef` for each."""
    arrays, structure = partition(tree)
    return arrays, structure.rebuild([ArrayRef(i) for i in range(len(arrays))])


# --- to lines -------------------------------------------------------------------------

# JSON has values of these types.
_PLAIN: dict[str, type] = {x.__name__: x for x in (type(None), bool, int, str)}
_SEQUENCES: dict[str, type] = {x.__name__: x for x in (tuple, list, set, frozenset)}

_NOT_IMPORTABLE = (
    "it cannot be imported by its name. Define it in a module, outside of any function"
)
_IDENTITY = (
    "it is compared by identity, so another process could not pass an equal one. Use a "
    "function of a module, or a frozen dataclass"
)
_ARRAY = (
    "arrays in static fields are compared by identity, so another process could not "
    "pass an equal one. Make it a normal field"
)
_RESULT = "values of this type cannot be built from a file. Use a frozen dataclass"


@dataclasses.dataclass
class Encoder:
    """Writes values as lines. Raises `ExportError` with the path of what it cannot.

    Only what is `to_build` can be built again; other values are only compared.
    """

    to_build: bool = False
    lines: list[Line] = dataclasses.field(default_factory=list[Line])
    # The classes and functions that were written, by name.
    objects: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    def write(self, x: Any, path: str, static: bool = False) -> None:
        """Add the lines of a value. If it is static, so are all of its parts."""
        cls = type(x)
        if cls in _PLAIN.values():
            self._line(path, cls.__name__, x)
        elif cls is ArrayRef:
            self._line(path, "array", x.number)
        elif cls is DefaultRef:
            self._line(path, "default", x.parameter)
        elif cls is float:
            self._line(path, "float", repr(x))
        elif cls is complex:
            self._line(path, "complex", [repr(x.real), repr(x.imag)])
        elif cls is bytes:
            self._line(path, "bytes", x.hex())
        elif cls in _SEQUENCES.values():
            self._sequence(x, path, static)
        elif cls is dict:
            self._line(path, "dict", None, 2 * len(x))
            for key, value in x.items():
                place = f"{path}[{_short(key)}]"
                self.write(key, place, static=True)
                self.write(value, place, static)
        else:
            self._of_class(x, reader_of(x), path, static)

    def _line(self, path: str, kind: str, about: Any, n_parts: int = 0) -> None:
        self.lines.append([path, kind, about, n_parts])

    def _sequence(self, x: Any, path: str, static: bool) -> None:
        self._line(path, type(x).__name__, None, len(x))
        if isinstance(x, set | frozenset):  # the same each time
            x = sorted(x, key=lambda member: self._text(member, path))
        for i, member in enumerate(x):
            self.write(member, f"{path}[{i}]", static)

    def _text(self, member: Any, path: str) -> str:
        encoder = Encoder(self.to_build)
        encoder.write(member, path, static=True)
        return json.dumps(encoder.lines)

    def _of_class(self, x: Any, reader: Any, path: str, static: bool) -> None:
        cls = type(x)
        if reader.name == "tuple":
            self._line(path, "namedtuple", self._class(x, path), len(x))
            for name, value in zip(getattr(cls, "_fields", ()), x, strict=True):
                self.write(value, f"{path}.{name}", static)
        elif reader.name in ("module", "fields"):
            names = reader.names
            self._line(path, "instance", [self._class(x, path), *names], len(names))
            for i, name in enumerate(names):
                try:
                    value = object.__getattribute__(x, name)
                except AttributeError:
                    raise _refused(x, path, f"`{name}` is not set") from None
                is_static = static or i >= reader.n_dynamic
                self.write(value, f"{path}.{name}", is_static)
        elif reader.name == "node":
            children, treedef = jtu.tree_flatten_with_path(x, lambda y: y is not x)
            self._line(path, "node", self._class(x, path), 1 + len(children))
            self.write((treedef.node_data() or (None, None))[1], path, static=True)
            for key, child in children:
                self.write(child, path + jtu.keystr(key), static)
        else:
            self._static(x, reader, path)

    def _static(self, x: Any, reader: Any, path: str) -> None:
        cls = type(x)
        if isinstance(x, jax.Array):
            raise _refused(x, path, _ARRAY)
        if isinstance(x, np.dtype) and x.names is None and np.dtype(x.name) == x:
            return self._line(path, "dtype", x.name)
        if isinstance(x, enum.Enum) and cls.__members__.get(x.name) is x:
            return self._line(path, "member", [self._class(x, path), x.name])
        if cls is functools.partial:
            self._line(path, "partial", None, 3)
            for name in ("func", "args", "keywords"):
                self.write(getattr(x, name), f"{path}.{name}", static=True)
            return None
        if (name := name_of(x)) is not None:
            self.objects[name] = x
            return self._line(path, "name", name)
        if callable(x) and hasattr(x, "__qualname__"):
            raise _refused(x, path, _NOT_IMPORTABLE)
        state = x if reader.state is None else reader.state(x)
        if state is x:
            raise _refused(x, path, _IDENTITY)
        if self.to_build:
            raise _refused(x, path, _RESULT)
        self._line(path, "state", self._class(x, path), 1)
        return self.write(state, path, static=True)

    def _class(self, x: Any, path: str) -> str:
        """The name of a value's class."""
        name = name_of(type(x))
        if name is None:
            raise _refused(x, path, f"its class: {_NOT_IMPORTABLE}")
        self.objects[name] = type(x)
        return name


def _refused(x: Any, path: str, why: str) -> ExportError:
    kind = type(x).__qualname__
    return ExportError(f"`{path}` cannot be exported: {_short(x)} ({kind}): {why}.")


def _short(x: Any) -> str:
    try:
        text = repr(x)
    except Exception:  # the user's own
        text = f"<{type(x).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


# --- in words -------------------------------------------------------------------------


def show_line(line: Line) -> str:
    """What a line says: `the static 2`, `an array`, `a list of 3`."""
    _, kind, about, n_parts = line
    if kind == "array":
        return "an array"
    if kind in _PLAIN:
        return f"the static {_short(about)}"
    name = about[0] if kind == "instance" else about
    text = ".".join(map(str, name)) if isinstance(name, list) else name
    if n_parts or kind in _SEQUENCES or kind == "dict":
        return f"a {kind} of {n_parts}" if text is None else f"a {text.split(':')[-1]}"
    return f"the static {text}"


def difference(then: Sequence[Line], now: Sequence[Line]) -> str | None:
    """The first difference between two trees, in words; `None` if there is none."""
    for old, new in itertools.zip_longest(then, now):
        if old == new:
            continue
        if old is None or new is None or old[0] != new[0]:
            paths = ["nothing" if x is None else f"`{x[0]}`" for x in (old, new)]
            return f"expected {paths[0]}, got {paths[1]}"
        return f"`{old[0]}` was {show_line(old)} and is now {show_line(new)}"
    return None


# --- from lines -----------------------------------------------------------------------


@dataclasses.dataclass
class Decoder:
    """Builds values from lines. Raises `ExportFileError` for lines that are wrong."""

    # Which classes and functions may be used.
    names: Names

    def read(self, lines: Sequence[Line], arrays: Sequence[Any]) -> Any:
        """The value that all of these lines are, with these arrays in it."""
        left = iter(lines)
        out = self.read_one(left, arrays)
        if next(left, None) is not None:
            raise ExportFileError("its header is invalid (a tree)")
        return out

    def read_one(self, lines: Iterator[Line], arrays: Sequence[Any]) -> Any:
        """The value that the next lines are."""
        line = next(lines, None)
        if line is None:
            raise ExportFileError("its header is invalid (a tree)")
        _, kind, about, n_parts = line
        parts = [self.read_one(lines, arrays) for _ in range(n_parts)]
        if kind in _PLAIN and type(about) is _PLAIN[kind]:
            return about
        if kind == "array":
            return arrays[about]
        if kind in _BUILD:
            return _BUILD[kind](about, parts)
        found = self.names.get(about if type(about) is str else about[0])
        if kind == "name":
            return found
        if not isinstance(found, type):
            raise ExportFileError(f"{found!r} is not a class")
        return _of_class(kind, found, about, parts)


def _of_class(kind: str, cls: type, about: Any, parts: list[Any]) -> Any:
    if kind == "member" and issubclass(cls, enum.Enum):
        return cls.__members__[about[1]]
    if kind == "namedtuple" and issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return tuple.__new__(cls, parts)
    if kind == "node":
        leaves = [jtu.tree_structure(0)] * (len(parts) - 1)
        treedef = jtu.PyTreeDef.from_node_data_and_children(
            jtu.default_registry, (cls, parts[0]), leaves
        )
        return jtu.tree_unflatten(treedef, parts[1:])
    if kind != "instance":
        raise ExportFileError(f"its header is invalid ({kind!r})")
    if not issubclass(cls, eqx.Module) and generated_fields(cls) is None:
        raise ExportFileError(f"{cls!r} is not a Module or a dataclass")
    out = object.__new__(cls)
    for name, value in zip(about[1:], parts, strict=True):
        object.__setattr__(out, name, value)
    return out


# By kind: how to build a value from what there is to know and its parts.
_BUILD: dict[str, Callable[[Any, list[Any]], Any]] = {
    "default": lambda about, _: DefaultRef(str(about)),
    "float": lambda about, _: float(about),
    "complex": lambda about, _: complex(*map(float, about)),
    "bytes": lambda about, _: bytes.fromhex(about),
    "dtype": lambda about, _: jnp.dtype(about),
    "tuple": lambda _, parts: tuple(parts),
    "list": lambda _, parts: parts,
    "set": lambda _, parts: set(parts),
    "frozenset": lambda _, parts: frozenset(parts),
    "dict": lambda _, parts: dict(zip(parts[::2], parts[1::2], strict=True)),
    "partial": lambda _, parts: functools.partial(parts[0], *parts[1], **parts[2]),
}
