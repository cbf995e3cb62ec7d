"""What a function reads beside its arguments: globals, variables of the function around
it, entries of dictionaries there, and attributes.

By its source: no code of the user's is run.
"""

import ast
import contextlib
import functools
import inspect
import linecache
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from eqx_fastjit._callables import source_of
from eqx_fastjit._facts import is_users, Place
from eqx_fastjit._statics import has_only_identity


MISSING = object()


class Read(NamedTuple):
    """Where a function reads a value."""

    # A variable; what is read of it: attributes, and keys of dictionaries in a tuple.
    steps: tuple[Any, ...]
    place: Place
    function: weakref.ref[types.FunctionType]
    # Of the arguments, those that are plain objects.
    arguments: Mapping[str, Any]

    @property
    def path(self) -> str:
        """As in the source: `cfg['lr']`."""
        name, *steps = self.steps
        texts = (f"[{x[0]!r}]" if isinstance(x, tuple) else f".{x}" for x in steps)
        return name + "".join(texts)

    def value(self) -> Any:
        """What would be read now; `MISSING` if that is gone."""
        (name, *steps), function = self.steps, self.function()
        if function is None:
            return MISSING
        code, value = function.__code__, self.arguments.get(name, MISSING)
        if name in code.co_freevars:
            cell = (function.__closure__ or ())[code.co_freevars.index(name)]
            with contextlib.suppress(ValueError):  # it is empty
                value = cell.cell_contents
        elif name not in (*code.co_varnames, *code.co_cellvars):
            value = function.__globals__.get(name, MISSING)
        for step in steps:
            if not isinstance(step, tuple):
                value = inspect.getattr_static(value, step, MISSING)
            else:
                value = value.get(step[0], MISSING) if type(value) is dict else MISSING
        return value


def plain_of(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those arguments that only equal themselves, as objects with attributes do."""
    others = type, types.FunctionType, types.ModuleType
    found = weakref.WeakValueDictionary[str, Any]()
    for name, x in arguments.items():
        is_plain = has_only_identity(x) and not isinstance(x, others)
        if is_plain and type(x).__weakrefoffset__:  # it can be referred to weakly
            found[name] = x
    return found


def reads_of(
    function: Any, arguments: Mapping[str, Any] | None = None, depth: int = 2
) -> Iterator[Read]:
    """What a function reads, and those of the user's functions that it calls.

    Of arguments, only what is in the given ones, which are plain objects.
    """
    function = source_of(function)
    if function is None or not is_users(function.__code__.co_filename):
        return
    code = function.__code__
    for steps, line in _steps_in(code).items():
        place = Place(code.co_filename, line, code.co_qualname)
        read = Read(steps, place, weakref.ref(function), arguments or {})
        value = read.value()
        if value is not MISSING:
            yield read
        if depth and callable(value):
            owner = read._replace(steps=steps[:-1]).value() if steps[1:] else None
            method = inspect.getattr_static(type(owner), steps[-1], None)
            is_method = value is method and isinstance(value, types.FunctionType)
            parameter = value.__code__.co_varnames[:1] if is_method else ()
            inside = plain_of(dict.fromkeys(parameter, owner))
            yield from reads_of(value, inside, depth - 1)


# --- what code reads ------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _steps_in(code: types.CodeType) -> dict[tuple[Any, ...], int]:
    """What code reads and does not write, functions defined inside included; and the
    line that does first.
    """
    read: dict[tuple[Any, ...], int] = {}
    written: set[tuple[Any, ...]] = set()
    known = _accesses("".join(linecache.getlines(code.co_filename)))
    positions: Iterable[Any] = code.co_positions()
    for position in filter(known.__contains__, positions):
        steps, is_read = known[position]
        if is_read:
            read.setdefault(steps, position[0])
        else:
            written.add(steps)
    for inner in (x for x in code.co_consts if isinstance(x, types.CodeType)):
        variables = *inner.co_varnames, *inner.co_cellvars
        inside = _steps_in(inner).items()
        read = {x: n for x, n in inside if x[0] not in variables} | read
    return {
        steps: line
        for steps, line in read.items()
        if written.isdisjoint(steps[: i + 1] for i in range(len(steps)))
    }


@functools.lru_cache(maxsize=16)
def _accesses(source: str) -> dict[Any, tuple[tuple[Any, ...], bool]]:
    """The variables, attributes and entries in a file's text, and which ones are read.

    By their positions, which are those of instructions.
    """
    try:
        nodes: list[Any] = list(ast.walk(ast.parse(source)))
    # Of code that is nested too deeply for the parser; or of no Python.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return {
        (x.lineno, x.end_lineno, x.col_offset, x.end_col_offset): (
            steps,
            isinstance(x.ctx, ast.Load),
        )
        for x in nodes
        if (steps := _steps_of(x))
    }


def _steps_of(node: Any) -> tuple[Any, ...]:
    """`cfg["lr"]` as `("cfg", ("lr",))`; empty if it is none."""
    match node:
        case ast.Name():
            return (node.id,)
        case ast.Attribute():
            step = node.attr
        case ast.Subscript(slice=ast.Constant(value=str() | int() as key)):
            step = (key,)
        case _:
            return ()
    inside = _steps_of(node.value)
    return inside and (*inside, step)
