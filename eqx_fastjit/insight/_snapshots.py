"""Snapshots of the values that a function could read from outside."""

# Values are anybody's.
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

import dataclasses
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from inspect import getattr_static
from typing import Any, NamedTuple

from jax.core import Tracer

from eqx_fastjit._nodes import is_node
from eqx_fastjit._parts import is_identity_type

from ._reads import (
    current_value,
    is_library_module,
    method_behind,
    MISSING,
    names_in,
    parameters_of,
    python_function,
    readable,
    reads,
)
from ._stand_ins import is_identity, is_plain_object, Value, value_of
from ._target import unwrapped


# How far to follow functions of the same module that the function calls.
_DEPTH = 2
_MAX_FUNCTIONS = 50


class Read(NamedTuple):
    """A value that a trace has read as it was then, and the function that reads it."""

    function: Callable[[], types.FunctionType | None]  # a weak reference to it
    kind: str  # "global", "closure", "default" or "argument"
    name: str
    # What it was.
    value: Value
    # Of an argument: a weak reference to it.
    argument: Callable[[], Any] | None = None


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The values that a function could read from outside at some time.

    This includes the functions that it calls in its module.
    """

    values: tuple[Read, ...] = ()


@dataclasses.dataclass(frozen=True)
class Change:
    """A value that a trace has read, and that has changed since."""

    # As it is written in the code: `LEARNING_RATE`, `config.lr`.
    name: str
    # "global", "closure", "default" or "attribute"
    kind: str
    # Where it is read.
    file: str
    line: int
    function: str
    # Short texts; for arrays, only dtype and shape.
    old: str
    new: str

    @property
    def where(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"


def snapshot(fun: Any, arguments: Iterable[tuple[str, Any]] = ()) -> Snapshot:
    """Remember what a function would read if it were traced now.

    Never raises: values that cannot be inspected are omitted.

    **Arguments:**

    - `fun`: a function, jitted or not.
    - `arguments`: of the call that it is traced for, by name. Of an object that is
        compared by its identity, such as `self`, the attributes are read from outside.

    **Returns:** a `Snapshot`, for `changed`. It does not keep values alive.
    """
    try:
        return Snapshot((*_look_around(fun), *_look_into(fun, arguments)))
    except Exception:
        return Snapshot()


def _look_around(fun: Any) -> Iterator[Read]:
    if (first := python_function(fun)) is None:
        return
    pending, seen = [(first, 0)], {id(first)}
    while pending:
        function, depth = pending.pop()
        names = names_in(function.__code__)
        for kind, name, value in readable(function, names):
            is_module = isinstance(value, types.ModuleType)
            if isinstance(value, Tracer) or (is_module and is_library_module(value)):
                continue
            try:
                yield Read(weakref.ref(function), kind, name, value_of(value, names))
            except Exception:  # of a user's class, say
                continue
            helper = python_function(value)
            if (
                helper is not None
                and helper.__module__ == first.__module__
                and id(helper) not in seen
                and depth < _DEPTH
                and len(seen) < _MAX_FUNCTIONS
            ):
                seen.add(id(helper))
                pending.append((helper, depth + 1))


def _look_into(fun: Any, arguments: Iterable[tuple[str, Any]]) -> Iterator[Read]:
    """What a function, or a method that it calls, reads of objects passed to it."""
    first = python_function(fun)
    if first is None:
        return
    pending: list[tuple[types.FunctionType, str, Any]] = []
    for name, x in arguments:
        function, itself = first, x
        if (method := method_behind(x)) is not None:  # mostly the function's own
            itself, function = method.__self__, python_function(method.__func__)
            if function is None:
                continue
            name = next(iter(parameters_of(function.__code__)), name)
        if is_plain_object(itself) and _is_compared_by_identity(itself):
            pending.append((function, name, itself))
    seen: set[Any] = set()
    while pending and len(seen) < _MAX_FUNCTIONS:
        function, name, itself = pending.pop()
        seen.add((function, name))
        own = [path for path in reads(function.__code__) if path[0] == "argument"]
        names = frozenset(path[2] for path in own if path[1] == name)
        try:
            value, reference = value_of(itself, names), weakref.ref(itself)
        except Exception:  # of a user's class, say
            continue
        yield Read(weakref.ref(function), "argument", name, value, reference)
        for attribute in names:
            method = unwrapped(getattr_static(type(itself), attribute, None))
            if isinstance(method, types.FunctionType):
                first_name = next(iter(parameters_of(method.__code__)), "")
                if (method, first_name) not in seen:
                    pending.append((method, first_name, itself))


def _is_compared_by_identity(x: Any) -> bool:
    return is_identity_type(type(x)) and not is_node(x)


def changed(snapshot: Snapshot) -> list[Change]:
    """What has changed since a snapshot. Never raises.

    **Arguments:**

    - `snapshot`: from `snapshot`.

    **Returns:** a `Change` for each name that the code reads and whose value differs.
    """
    out: list[Change] = []
    for read in snapshot.values:
        try:
            out += _compare(read)
        except Exception:
            continue
    return out


def _compare(read: Read) -> Iterator[Change]:
    function, kind, then = read.function(), read.kind, read.value
    if function is None:
        return
    code = function.__code__
    lines, file, name = reads(code), code.co_filename, function.__qualname__
    line = lines.get((kind, read.name), 0)
    if kind == "default":
        line = code.co_firstlineno
    elif not line and kind != "argument":
        return  # a name of something else, an attribute say
    if read.argument is None:
        current = current_value(function, kind, read.name)
    elif (current := read.argument()) is None:
        return
    if current is MISSING:
        yield Change(read.name, kind, file, line, name, then.shown, "<deleted>")
        return
    now = value_of(current, frozenset(then.attributes))
    if now.stand_in != then.stand_in:
        yield Change(read.name, kind, file, line, name, then.shown, _new(now, then))
        return
    for attribute, old in then.attributes.items():
        path = (kind, read.name, attribute)
        if path not in lines:
            continue
        new = now.attributes.get(attribute)
        if new is None or new.stand_in != old.stand_in:
            shown = "<deleted>" if new is None else _new(new, old)
            full = f"{read.name}.{attribute}"
            yield Change(full, "attribute", file, lines[path], name, old.shown, shown)


def _new(value: Value, old: Value) -> str:
    """A value that differs from an old one, which may look the same."""
    if value.shown != old.shown:
        return value.shown
    if is_identity(value):
        return "another " + value.shown.removeprefix("a ").removeprefix("an ")
    return f"{value.shown}, changed"
