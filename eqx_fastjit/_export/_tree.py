"""Pytrees and statics as data: a list of steps that build one on a stack.

Each step is a list that JSON can hold: what it is, then its data. A step with parts
takes them off the stack, so that nothing here recurses, however deep a tree. Arrays are
numbers. Instances are made without running their `__init__`.
"""

import binascii
import dataclasses
import enum
import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np

from eqx_fastjit._compat import instance_dict, node_registry
from eqx_fastjit._nodes import ARRAY_TYPES, classify, NodeKind, one_level
from eqx_fastjit._partition import Omitted, partition, walk
from eqx_fastjit._policy import Kind
from eqx_fastjit._static_keys import policy_of

from ._format import count, ExportFileError
from ._names import name_of, Names


# Limits statics that contain themselves.
_MAX_STEPS = 10_000_000


class ExportError(ValueError):
    """A function cannot be exported for these arguments."""


@dataclasses.dataclass(frozen=True)
class ArrayRef:
    """A placeholder for an array of the tree, by its number."""

    number: int


@dataclasses.dataclass(frozen=True, eq=False)
class DefaultRef:
    """A placeholder for the default of a parameter that was not passed."""

    name: str


_CONTAINERS: tuple[type, ...] = (tuple, list, set, frozenset)
# By type, as text that JSON holds, and again.
_SCALARS: dict[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    int: (hex, lambda x: int(x, 16)),
    float: (
        lambda x: struct.pack("<d", x).hex(),
        lambda x: struct.unpack("<d", bytes.fromhex(x))[0],
    ),
    complex: (
        lambda x: struct.pack("<dd", x.real, x.imag).hex(),
        lambda x: complex(*struct.unpack("<dd", bytes.fromhex(x))),
    ),
    bytes: (bytes.hex, bytes.fromhex),
}
# Flattened by what is registered for them.
_NODES = (
    NodeKind.CUSTOM,
    NodeKind.STATE,
    NodeKind.ORDERED_DICT,
    NodeKind.DEFAULTDICT,
)
_SINGLETONS: dict[Any, str] = {
    x: str(x).lower() for x in (None, True, False, Ellipsis, NotImplemented)
}


# The step for a value, and its parts: each with its path, and whether it is static.
_Visited = tuple[list[Any], list[tuple[Any, str, bool]]]


class Writer:
    """Writes trees as steps, which refer to `names` by index."""

    def __init__(self) -> None:
        self.names: list[str] = []
        # What they are here.
        self.objects: dict[str, Any] = {}
        # The path and a short text of each static, for `show`.
        self.statics: list[tuple[str, str]] = []

    def write(self, roots: Sequence[tuple[str, Any]], root: str = "tuple") -> list[Any]:
        """The steps for a tuple of trees, each of which is given with its path.

        With `""` for `root`, the kind of the whole, they are for a single tree by
        itself. Raises `ExportError` with the path of what cannot be written.
        """
        steps: list[Any] = []
        # What remains to be visited: a value, its path, and whether it is part of a
        # static; or a finished step.
        pending: list[Any] = [(x, path, False) for path, x in reversed(roots)]
        if root:
            pending.insert(0, [root, len(roots)])
        while pending:
            item = pending.pop()
            if type(item) is list:
                steps.append(item)
                if len(steps) > _MAX_STEPS:
                    raise ExportError("the arguments or the result are too large.")
                continue
            step, parts = self._visit(*item)
            if not item[2]:
                self._note_statics(item, step, parts)
            pending.append(step)
            pending.extend(reversed(parts))
            if len(pending) > _MAX_STEPS:
                raise ExportError(f"`{item[1]}` is too large, or contains itself.")
        return steps

    def _note_statics(self, item: Any, step: list[Any], parts: list[Any]) -> None:
        """Note the static at this path, without its parts."""
        x, path, _ = item
        if step[0] == "instance":
            found = [(value, at) for value, at, static in parts if static]
        elif parts or step[0] in ("array", "default", "none"):
            return
        else:
            found = [] if type(x) in (tuple, list, dict) else [(x, path)]
        for value, at in found:
            text = name_of(value) if callable(value) else None
            self.statics.append((at, text or _short(value)))

    def _visit(self, x: Any, path: str, static: bool) -> _Visited:
        cls = type(x)
        if cls is ArrayRef:
            return ["array", x.number], []
        if cls is DefaultRef:
            return ["default", x.name], []
        if cls is Omitted:
            return ["default", ""], []
        kind = NodeKind.STATIC if static else classify(x).kind
        if cls in _CONTAINERS:
            parts = list(x)
            if cls in (set, frozenset):
                parts.sort(key=repr)  # the same file each time
            children = [(part, f"{path}[{i}]", static) for i, part in enumerate(parts)]
            return [cls.__name__, len(parts)], children
        if cls is dict:
            children = []
            for key, value in x.items():
                at = f"{path}[{key!r}]"
                children += [(key, at, True), (value, at, static)]
            return ["dict", len(x)], children
        if kind == NodeKind.NAMEDTUPLE or (static and _is_namedtuple(cls)):
            children = [
                (value, f"{path}.{name}", static)
                for name, value in zip(cls._fields, x, strict=True)
            ]
            return ["namedtuple", self._name(cls, path), len(children)], children
        if kind in (NodeKind.MODULE, NodeKind.DATACLASS):
            return self._instance(x, path, set(classify(x).static))
        if kind in _NODES:
            return self._node(x, path)
        return self._static(x, path)

    def _instance(self, x: Any, path: str, static: set[str] | None) -> _Visited:
        """An instance, as its attributes. All are static if `static` is `None`."""
        values = _attributes(x)
        if values is None:
            raise _unwritable(x, path, "its attributes cannot be read")
        children = [
            (value, f"{path}.{name}", static is None or name in static)
            for name, value in values.items()
        ]
        return ["instance", self._name(type(x), path), list(values)], children

    def _node(self, x: Any, path: str) -> _Visited:
        """A registered node, which its own functions flatten and unflatten."""
        children, aux = one_level(x)
        keys = jtu.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)[0]
        parts = [
            (child, f"{path}{jtu.keystr(key)}", False)
            for child, (key, _) in zip(children, keys, strict=True)
        ]
        step = ["node", self._name(type(x), path), len(parts)]
        return step, [(aux, path, True), *parts]

    def _static(self, x: Any, path: str) -> _Visited:
        cls = type(x)
        if cls in (bool, type(None), type(Ellipsis), type(NotImplemented)):
            return [_SINGLETONS[x]], []
        if cls in _SCALARS:
            return [cls.__name__, _SCALARS[cls][0](x)], []
        if cls is str:
            if not x.isprintable():  # JSON has no lone surrogates
                return ["text", x.encode("utf-8", "surrogatepass").hex()], []
            return ["str", x], []
        if cls is functools.partial:
            parts = [x.func, *x.args, *x.keywords.values()]
            step = ["partial", len(x.args), list(x.keywords)]
            return step, [(part, path, True) for part in parts]
        if cls in (slice, range):
            parts = [x.start, x.stop, x.step]
            return [cls.__name__], [(part, path, True) for part in parts]
        if isinstance(x, np.dtype):
            if x.names is None and np.dtype(x.name) == x:
                return ["dtype", x.name], []
            raise _unwritable(x, path, "structured dtypes are not supported")
        if isinstance(x, enum.Enum) and cls.__members__.get(x.name) is x:
            return ["member", self._name(cls, path), x.name], []
        if isinstance(x, ARRAY_TYPES):
            raise _unwritable(
                x,
                path,
                "arrays in static fields are compared by identity, which does not "
                "carry over to another process. Make it a normal field",
            )
        # Data may happen to have a name.
        is_data = dataclasses.is_dataclass(x) and not isinstance(x, type)
        if not is_data and (name := name_of(x)) is not None:
            return ["name", self._number(name, x)], []
        is_module = classify(x).kind == NodeKind.MODULE
        if is_module or policy_of(cls).kind is Kind.FIELDS:
            return self._instance(x, path, None)
        if dataclasses.is_dataclass(cls) and policy_of(cls).kind is Kind.ATTRIBUTES:
            return self._instance(x, path, None)
        raise _unwritable(x, path, _advice(x))

    def _name(self, cls: type, path: str) -> int:
        name = name_of(cls)
        if name is None:
            raise _unwritable(cls, path, _NOT_IMPORTABLE)
        return self._number(name, cls)

    def _number(self, name: str, x: Any) -> int:
        if name not in self.objects:
            self.objects[name] = x
            self.names.append(name)
        return self.names.index(name)


_NOT_IMPORTABLE = (
    "it cannot be imported by its name. Define it in a module, outside of any function"
)


def _advice(x: Any) -> str:
    if callable(x) and hasattr(x, "__qualname__"):
        return _NOT_IMPORTABLE
    if policy_of(type(x)).kind is Kind.IDENTITY:
        return (
            "it is compared by identity, so another process could not pass an equal "
            "one. Use a function of a module, or a frozen dataclass"
        )
    return "values of this type cannot be saved. Use a frozen dataclass"


def _unwritable(x: Any, path: str, why: str) -> ExportError:
    is_class = isinstance(x, type)
    shown = f"{x.__module__}.{x.__qualname__}" if is_class else _short(x)
    what = "class" if is_class else type(x).__name__
    return ExportError(f"`{path}` cannot be exported: {shown} ({what}): {why}.")


def _short(x: Any) -> str:
    try:
        text = repr(x)
    except Exception:  # the user's own
        text = f"<{type(x).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _is_namedtuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def _attributes(x: Any) -> dict[str, Any] | None:
    """What an instance holds, in its dictionary or its slots."""
    try:
        if classify(x).kind == NodeKind.MODULE:
            return dict(instance_dict(x))
        if hasattr(type(x), "__slots__") and not hasattr(x, "__dict__"):
            return {f.name: getattr(x, f.name) for f in dataclasses.fields(x)}
        return dict(object.__getattribute__(x, "__dict__"))
    except (AttributeError, TypeError):
        return None


# --- reading --------------------------------------------------------------------------


@dataclasses.dataclass
class TreeReader:
    """Builds what a `Writer` wrote, whose names are in `table`.

    `default` gives what stands for the default of a parameter that was not passed.
    """

    table: Sequence[str]
    names: Names
    default: Callable[[str], Any]

    def read(self, steps: Sequence[Any], arrays: Sequence[Any]) -> Any:
        """The tree, with these arrays in it. Raises `ExportFileError`."""
        stack: list[Any] = []
        try:
            for kind, *data in steps:
                n, build = self._step(kind, data, arrays)
                if n > len(stack):
                    raise ExportFileError("its header is invalid (a tree)")
                parts = stack[len(stack) - n :]
                del stack[len(stack) - n :]
                stack.append(build(parts))
            (out,) = stack
        except ExportFileError:
            raise
        except (ValueError, TypeError, LookupError, binascii.Error, struct.error) as e:
            raise ExportFileError(f"its header is invalid (a tree: {e!r})") from e
        return out

    def _step(
        self, kind: str, data: Sequence[Any], arrays: Sequence[Any]
    ) -> tuple[int, Callable[[list[Any]], Any]]:
        """How many parts a step takes, and the function that builds its value."""
        if kind in _MAKE:
            (n,) = data
            return count(n) * (1 + (kind == "dict")), _MAKE[kind]
        if kind in _VALUES:
            value = _VALUES[kind](*data)
            return 0, lambda _: value
        if kind in ("slice", "range"):
            return 3, lambda parts: (slice if kind == "slice" else range)(*parts)
        if kind == "partial":
            n, names = count(data[0]), data[1]
            return 1 + n + len(names), lambda parts: functools.partial(
                *parts[: 1 + n], **dict(zip(names, parts[1 + n :], strict=True))
            )
        if kind == "array":
            return 0, lambda _: arrays[count(data[0])]
        if kind == "default":
            return 0, lambda _: self.default(str(data[0]))
        found = self.names.get(self.table[count(data[0])])
        if kind == "name":
            return 0, lambda _: found
        if not isinstance(found, type):
            raise ExportFileError(f"{found!r} is not a class")
        if kind == "member":
            if not issubclass(found, enum.Enum):
                raise ExportFileError(f"{found!r} is not an enumeration")
            return 0, lambda _: found.__members__[data[1]]
        if kind == "namedtuple":
            if not _is_namedtuple(found):
                raise ExportFileError(f"{found!r} is not a named tuple")
            return count(data[1]), lambda parts: tuple.__new__(found, parts)
        if kind == "instance":
            return len(data[1]), lambda parts: _new_instance(found, data[1], parts)
        if kind == "node":
            return count(data[1]) + 1, lambda parts: _new_node(found, parts)
        raise ExportFileError(f"its header has an unknown step {kind!r}")


_MAKE: dict[str, Callable[[list[Any]], Any]] = {
    **{cls.__name__: cls for cls in _CONTAINERS},
    "dict": lambda parts: dict(zip(parts[::2], parts[1::2], strict=True)),
}
_VALUES: dict[str, Callable[..., Any]] = {
    **{name: (lambda value=value: value) for value, name in _SINGLETONS.items()},
    **{cls.__name__: read for cls, (_, read) in _SCALARS.items()},
    "str": str,
    "text": lambda x: bytes.fromhex(x).decode("utf-8", "surrogatepass"),
    "dtype": lambda x: jax.numpy.dtype(str(x)),
}


def _new_instance(cls: type, names: Sequence[str], parts: list[Any]) -> Any:
    """An instance with these attributes, without running `__new__` or `__init__`."""
    is_module_or_data = (
        dataclasses.is_dataclass(cls) or policy_of(cls).kind is Kind.FIELDS
    )
    if not is_module_or_data or not all(type(x) is str for x in names):
        raise ExportFileError(f"{cls!r} is not a Module or a dataclass")
    out = object.__new__(cls)
    for name, value in zip(names, parts, strict=True):
        object.__setattr__(out, name, value)
    return out


def _new_node(cls: type, parts: list[Any]) -> Any:
    """A node by the function that its class registered for it with JAX."""
    registry = node_registry()
    entry = None if registry is None else registry.get(cls)
    if entry is None:
        raise ExportFileError(f"{cls!r} is not registered as a pytree node here")
    return entry.from_iter(parts[0], parts[1:])


def with_refs(tree: Any) -> Any:
    """A tree with numbers in place of its arrays."""
    arrays, structure = partition(tree, abstract=True)
    return structure.rebuild([ArrayRef(i) for i in range(len(arrays))])


def written(tree: Any) -> tuple[list[Any], list[str]]:
    """A tree by what it is made of, to compare with: steps, and names. Any arrays do.

    Raises `ExportError` if it cannot be written.
    """
    writer = Writer()
    return writer.write([("", with_refs(tree))], root=""), writer.names


def same_tree(x: Any, y: Any) -> bool:
    """Whether two trees are equal apart from their arrays, as calls compare them."""
    steps, names = written(x)
    # These compare by identity, but need not be the same objects here.
    has_partial = any(step[0] == "partial" for step in steps)
    same = (steps, names) == written(y)
    return same and (has_partial or walk(x).trail == walk(y).trail)
