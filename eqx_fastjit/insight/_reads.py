"""What a function reads beside its arguments: globals, variables of the function around
it, entries of dictionaries there, and attributes.

By its bytecode. No code of the user's is run.
"""

import contextlib
import dis
import inspect
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from eqx_fastjit._callables import source_of
from eqx_fastjit._facts import is_users, Place
from eqx_fastjit._statics import has_only_identity


# How far to follow functions that a function calls.
_DEPTH = 2
MISSING = object()


class Path(NamedTuple):
    """What a function reads: `cfg["lr"]` is `cfg` of its globals, then one item."""

    # "global", "cell" or "argument".
    space: str
    name: str
    # An attribute's name, or a dictionary's key in a tuple.
    steps: tuple[Any, ...] = ()

    def __str__(self) -> str:
        steps = (f"[{s[0]!r}]" if isinstance(s, tuple) else f".{s}" for s in self.steps)
        return self.name + "".join(steps)


class Read(NamedTuple):
    """A value that a function reads."""

    path: Path
    function: types.FunctionType
    value: Any
    place: Place
    # Of the arguments, those that are plain objects.
    arguments: Mapping[str, Any]


def is_plain(x: Any) -> bool:
    """Whether it is an object that only equals itself, such as one with attributes."""
    others = type, types.FunctionType, types.ModuleType
    is_weak = type(x).__weakrefoffset__ != 0  # it can be referred to so
    return has_only_identity(x) and is_weak and not isinstance(x, others)


def reads_of(
    function: Any, arguments: Mapping[str, Any] | None = None, depth: int = _DEPTH
) -> Iterator[Read]:
    """What a function, and the user's functions that it calls, read.

    Of arguments, only what is in the given ones.
    """
    function = source_of(function)
    if function is None or not is_users(function.__code__.co_filename):
        return
    code, arguments = function.__code__, arguments or {}
    for path, line in sorted(_paths(code).items(), key=str):
        value = value_at(path, function, arguments)
        if value is MISSING:
            continue
        place = Place(code.co_filename, line, code.co_qualname)
        yield Read(path, function, value, place, arguments)
        owner = value_at(path._replace(steps=path.steps[:-1]), function, arguments)
        if depth > 0 and _is_method(value, owner, path.steps):
            name = value.__code__.co_varnames[:1]  # `self`
            inside = weakref.WeakValueDictionary(dict.fromkeys(name, owner))
            yield from reads_of(value, inside, depth - 1)
        elif depth > 0 and isinstance(value, Callable) and path.space != "argument":
            yield from reads_of(value, None, depth - 1)


def _is_method(value: Any, owner: Any, steps: tuple[Any, ...]) -> bool:
    """Whether it is a method of a plain object."""
    if not isinstance(value, types.FunctionType) or not steps or not is_plain(owner):
        return False
    return inspect.getattr_static(type(owner), str(steps[-1]), None) is value


def value_at(
    path: Path, function: types.FunctionType | None, arguments: Mapping[str, Any]
) -> Any:
    """What a function would read now; `MISSING` if that is not there."""
    value: Any = MISSING
    if path.space == "argument":
        value = arguments.get(path.name, MISSING)
    elif function is not None and path.space == "global":
        value = function.__globals__.get(path.name, MISSING)
    elif function is not None and path.name in function.__code__.co_freevars:
        i = function.__code__.co_freevars.index(path.name)
        with contextlib.suppress(ValueError):  # the cell is empty
            value = (function.__closure__ or ())[i].cell_contents
    for step in path.steps:
        if isinstance(step, tuple):
            value = value.get(step[0], MISSING) if type(value) is dict else MISSING
        elif isinstance(value, types.ModuleType) and not _is_users(value):
            value = MISSING
        elif value is not MISSING:
            value = inspect.getattr_static(value, step, MISSING)
    return value


def _is_users(module: types.ModuleType) -> bool:
    return is_users(getattr(module, "__file__", None) or "<frozen ")


# --- what code reads ------------------------------------------------------------------


def _paths(code: types.CodeType) -> dict[Path, int]:
    """What code reads and does not write, functions defined inside included; and where.

    By the first line that does.
    """
    read: dict[Path, int] = {}
    written: set[Path] = set()
    path: Path | None = None
    key: Any = MISSING
    line = code.co_firstlineno
    for i in dis.get_instructions(code):
        name = i.opname
        line = (i.positions and i.positions.lineno) or line
        if (space := _SPACES.get(name)) or "LOAD_FAST" in name:
            # One instruction may load two variables; the last is on top.
            top = i.argval[-1] if isinstance(i.argval, tuple) else i.argval
            path, key = Path(space or "argument", top), MISSING
        elif name in ("STORE_GLOBAL", "STORE_DEREF"):
            written.add(Path("global" if "GLOBAL" in name else "cell", i.argval))
            path = None
        elif path is None or name in ("CACHE", "NOP", "PUSH_NULL", "EXTENDED_ARG"):
            continue
        elif name in ("LOAD_CONST", "LOAD_SMALL_INT"):
            key = i.argval
            continue
        elif name in ("LOAD_ATTR", "LOAD_METHOD") and key is MISSING:
            path = path._replace(steps=(*path.steps, i.argval))
        elif _is_item(i) and isinstance(key, str | int):
            path, key = path._replace(steps=(*path.steps, (key,))), MISSING
        else:
            if name == "STORE_ATTR":
                written.add(path._replace(steps=(*path.steps, i.argval)))
            elif name == "STORE_SUBSCR" and isinstance(key, str | int):
                written.add(path._replace(steps=(*path.steps, (key,))))
            # `x.n += 1` copies `x` first, and so is no path.
            path = None
        if path is not None:
            read.setdefault(path, line)
    for inner in (x for x in code.co_consts if isinstance(x, types.CodeType)):
        inside = _paths(inner).items()
        read = {p: n for p, n in inside if p.space != "argument"} | read
    return {p: n for p, n in read.items() if not any(_begins(p, w) for w in written)}


_SPACES = {"LOAD_GLOBAL": "global", "LOAD_NAME": "global", "LOAD_DEREF": "cell"}


def _is_item(instruction: dis.Instruction) -> bool:
    return instruction.opname == "BINARY_SUBSCR" or (
        instruction.opname == "BINARY_OP" and instruction.argrepr == "[]"
    )


def _begins(path: Path, with_: Path) -> bool:
    n = len(with_.steps)
    return (path.space, path.name, path.steps[:n]) == tuple(with_)
