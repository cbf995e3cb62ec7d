"""Snapshots of the values that a function could read from outside."""

import dataclasses
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from jax.core import Tracer

from ._reads import (
    current_value,
    is_library_module,
    MISSING,
    names_in,
    python_function,
    readable,
    reads,
)
from ._stand_ins import is_identity, Value, value_of


# How far to follow functions of the same module that the function calls.
_DEPTH = 2
_MAX_FUNCTIONS = 50


class Read(NamedTuple):
    """A value that is not an argument, and the function that reads it."""

    function: Callable[[], types.FunctionType | None]  # a weak reference to it
    kind: str  # "global", "closure" or "default"
    name: str
    # What it was.
    value: Value


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


def snapshot(fun: Any) -> Snapshot:
    """Remember what a function would read if it were traced now.

    Never raises: values that cannot be inspected are omitted.

    **Arguments:**

    - `fun`: a function, jitted or not.

    **Returns:** a `Snapshot`, for `changed`. It does not keep values alive.
    """
    try:
        return Snapshot(tuple(_look_around(fun)))
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
    line = code.co_firstlineno if kind == "default" else lines.get((kind, read.name))
    if not line:
        return  # a name of something else, an attribute say
    current = current_value(function, kind, read.name)
    if current is MISSING:
        yield Change(read.name, kind, file, line, name, then.shown, "<deleted>")
        return
    now = value_of(current, frozenset(then.attributes))
    if now.stand_in != then.stand_in:
        old, new = then.shown, now.shown
        if old == new:
            other = f"another {new.removeprefix('a ')}"
            new = other if is_identity(now) else f"{new}, changed"
        yield Change(read.name, kind, file, line, name, old, new)
        return
    for attribute, old in then.attributes.items():
        path = (kind, read.name, attribute)
        if path not in lines:
            continue
        new = now.attributes.get(attribute)
        if new is None or new.stand_in != old.stand_in:
            shown = "<deleted>" if new is None else new.shown
            if shown == old.shown:
                shown += ", changed"
            full = f"{read.name}.{attribute}"
            yield Change(full, "attribute", file, lines[path], name, old.shown, shown)
