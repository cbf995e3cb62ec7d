"""Pytrees and statics as data: one line for each part, outermost first.

A line has the path of the part, its kind, what there is to know about it, and how many
parts it has. Their lines follow:

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
from collections import defaultdict, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from eqx_fastjit._callables import OMITTED
from eqx_fastjit._statics import (
    generated_fields,
    is_flattened,
    partition,
    reader_of,
    state_of,
)
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


# How to write values of these types, as themselves or as text, and how to read them.
_JSON: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    **{x: (x, x) for x in (bool, int, str)},
    **{x: (repr, x) for x in (float, complex)},
    types.EllipsisType: (repr, lambda _: ...),
    types.NoneType: (lambda _: None, lambda _: None),
    bytes: (bytes.hex, bytes.fromhex),
}
_FROM_JSON = {x.__name__: read for x, (_, read) in _JSON.items()}
# The readers of values that are the same only if they are the same object.
_BY_IDENTITY = ("same", "array", "tracer")
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
            to_json, _ = _JSON[cls]
            self._line(path, cls.__name__, to_json(x))
        elif cls is ArrayRef:
            self._line(path, "array", x.number)
        elif x is OMITTED:
            self._line(path, "default", None)
        elif cls in _SEQUENCES.values():
            if isinstance(x, set | frozenset):  # in the same order each time
                x = sorted(x, key=lambda item: json.dumps(Encoder().write(item, path)))
            parts = [(f"{path}[{i}]", item) for i, item in enumerate(x)]
            self._line(path, cls.__name__, None, parts)
        elif cls is dict:
            parts = []
            for key, value in x.items():
                below = f"{path}[{describe_static(key)}]"
                parts += [(below, key), (below, value)]
            self._line(path, "dict", None, parts)
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
        # Pytrees and dataclasses, part by part.
        if reader.name in ("module", "fields"):
            # Also those that are not compared, if it is to be built.
            names = fields_of(type(x)) if self.to_build else reader.names
            try:
                get = object.__getattribute__
                parts = [(f"{path}.{name}", get(x, name)) for name in names]
            except AttributeError:
                raise _refused(x, path, "one of its fields is not set") from None
            self._line(path, "instance", [self._class(x, path), *names], parts)

        elif reader.name in ("node", "tuple") and is_flattened(x):
            children, treedef = jtu.tree_flatten_with_path(x, lambda y: y is not x)
            parts = [(path + jtu.keystr(key), child) for key, child in children]
            _, aux_data = treedef.node_data()
            self._line(path, "node", self._class(x, path), [(path, aux_data), *parts])

        elif type(x) is functools.partial:
            names = ("func", "args", "keywords")
            parts = [(f"{path}.{name}", getattr(x, name)) for name in names]
            self._line(path, "partial", None, parts)

        # What has a name.
        elif isinstance(x, np.dtype) and x.names is None and np.dtype(x.name) == x:
            self._line(path, "dtype", x.name)

        elif isinstance(x, enum.Enum) and type(x).__members__.get(x.name) is x:
            self._line(path, "member", [self._class(x, path), x.name])

        elif not isinstance(x, jax.Array) and (name := name_of(x)) is not None:
            self.objects[name] = x
            self._line(path, "name", name)

        # Anything else can only be compared, by the state that it has.
        else:
            state = x if reader.name in _BY_IDENTITY else state_of(x)
            if state is x:
                is_function = callable(x) and hasattr(x, "__qualname__")
                raise _refused(x, path, _NOT_IMPORTABLE if is_function else _IDENTITY)
            if self.to_build:
                raise _refused(x, path, _RESULT)
            self._line(path, "state", self._class(x, path), [(path, state)])

    def _class(self, x: Any, path: str) -> str:
        """The name of a value's class."""
        name = name_of(type(x))
        if name is None:
            raise _refused(x, path, f"its class: {_NOT_IMPORTABLE}")
        self.objects[name] = type(x)
        return name


def fields_of(cls: Any) -> list[str]:
    """The names of all fields of a Module, a dataclass, or a class of attrs."""
    # (A class of the one kind may derive from one of the other.)
    is_attrs = "__attrs_attrs__" in vars(cls) or not dataclasses.is_dataclass(cls)
    fields = cls.__attrs_attrs__ if is_attrs else dataclasses.fields(cls)  # pyright: ignore
    return [field.name for field in fields]


def _refused(x: Any, path: str, why: str) -> ExportError:
    return ExportError(f"`{path}` cannot be exported: {describe_static(x)}: {why}.")


def show_line(line: Line) -> str:
    """What a line says: `array`, `int 2`, `instance pkg:Config`."""
    _, kind, about, n_parts = line
    if kind == "array" or about is None:
        return kind
    if n_parts == 0:
        return f"{kind} {describe_static(about)}"
    # An instance's fields follow the name of its class.
    name = about[0] if type(about) is list else about
    return f"{kind} {name}"


def difference(then: Sequence[Line], now: Sequence[Line]) -> str | None:
    """The first difference between two trees, in words; `None` if there is none."""
    nothing = ["nothing", "nothing", None, 0]
    for old, new in itertools.zip_longest(then, now, fillvalue=nothing):
        if old[0] != new[0]:
            return f"expected `{old[0]}`, got `{new[0]}`"
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
    if kind == "dict":  # a key, its value, and so on
        return dict(zip(parts[::2], parts[1::2], strict=True))
    if kind == "dtype":
        return jnp.dtype(about)
    if kind == "partial":
        func, args, keywords = parts
        return functools.partial(func, *args, **keywords)
    if kind == "name":
        return names.get(about)
    if kind == "node":
        cls = names.get(about)
        if not (names.is_trusted(about) or _is_plain_node(cls)):
            raise ExportFileError(f"it builds {cls!r}, which may call anything")
        return _build_node(cls, *parts)
    if kind == "member":
        class_name, member = about
        return names.get(class_name).__members__[member]
    if kind == "instance":
        class_name, *fields = about
        return _build_instance(names.get(class_name), fields, parts)
    raise ExportFileError(f"its header is invalid ({kind!r})")


def _is_plain_node(cls: type) -> bool:
    """Whether to unflatten it only makes a container, whatever is in it."""
    if issubclass(cls, tuple):  # a named one
        return not hasattr(cls, "tree_unflatten")
    is_sparse = cls.__module__.startswith("jax.experimental.sparse.")
    return is_sparse or cls in (OrderedDict, defaultdict, jtu.Partial, eqx.nn.State)


def _build_node(cls: type, aux_data: Any, *children: Any) -> Any:
    """A value of a class that is registered with JAX."""
    treedef = jtu.PyTreeDef.from_node_data_and_children(
        jtu.default_registry,
        (cls, aux_data),
        [jtu.tree_structure(0)] * len(children),
    )
    return jtu.tree_unflatten(treedef, children)


def _build_instance(cls: type, fields: Sequence[str], values: Sequence[Any]) -> Any:
    """A value of a Module or dataclass, without calling its `__init__`."""
    if not issubclass(cls, eqx.Module) and generated_fields(cls) is None:
        raise ExportFileError(f"{cls!r} is not a Module or a dataclass")
    if not {*fields} <= {*fields_of(cls)}:
        raise ExportFileError(f"{cls!r} has no fields {fields}")

    out = object.__new__(cls)
    for name, value in zip(fields, values, strict=True):
        object.__setattr__(out, name, value)
    return out
