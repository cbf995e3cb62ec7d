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
    """Where a function reads a value."""

    path: Path
    place: Place
    function: weakref.ref[types.FunctionType]
    # Of the arguments, those that are plain objects.
    arguments: Mapping[str, Any]

    def value(self, but_last: int = 0) -> Any:
        """What would be read now, but for the last steps; `MISSING` if that is gone."""
        function, (space, name, steps) = self.function(), self.path
        value: Any = MISSING
        if space == "argument":
            value = self.arguments.get(name, MISSING)
        elif function is not None and space == "global":
            value = function.__globals__.get(name, MISSING)
        elif function is not None and name in function.__code__.co_freevars:
            i = function.__code__.co_freevars.index(name)
            with contextlib.suppress(ValueError):  # the cell is empty
                value = (function.__closure__ or ())[i].cell_contents
        for step in steps[: len(steps) - but_last]:
            if isinstance(step, tuple):
                value = value.get(step[0], MISSING) if type(value) is dict else MISSING
            elif isinstance(value, types.ModuleType) and not _is_users(value):
                value = MISSING
            elif value is not MISSING:
                value = inspect.getattr_static(value, step, MISSING)
        return value


def is_plain(x: Any) -> bool:
    """Whether it is an object that only equals itself, such as one with attributes."""
    others = type, types.FunctionType, types.ModuleType
    is_weak = type(x).__weakrefoffset__ != 0  # it can be referred to so
    return has_only_identity(x) and is_weak and not isinstance(x, others)


def reads_of(
    function: Any, arguments: Mapping[str, Any] | None = None, depth: int = _DEPTH
) -> Iterator[Read]:
    """What a function, and the user's functions that it calls, read.

    Of arguments, only what is in the given ones, which are plain objects.
    """
    function = source_of(function)
    if function is None or not is_users(function.__code__.co_filename):
        return
    code, known = function.__code__, weakref.ref(function)
    for path, line in sorted(_paths(code).items(), key=str):
        place = Place(code.co_filename, line, code.co_qualname)
        read = Read(path, place, known, arguments or {})
        value = read.value()
        if value is not MISSING:
            yield read
        if depth == 0 or not isinstance(value, Callable):
            continue
        owner = read.value(but_last=1) if path.steps else None
        inside: Any = {}
        if is_plain(owner) and isinstance(value, types.FunctionType):
            found = inspect.getattr_static(type(owner), value.__name__, None)
            name = value.__code__.co_varnames[: found is value]  # `self` of a method
            inside = weakref.WeakValueDictionary(dict.fromkeys(name, owner))
        if inside or path.space != "argument":
            yield from reads_of(value, inside, depth - 1)


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
        name, step = i.opname, None
        line = (i.positions and i.positions.lineno) or line
        is_item = name in ("BINARY_SUBSCR", "STORE_SUBSCR") or i.argrepr == "[]"
        if (space := _SPACES.get(name)) or "LOAD_FAST" in name:
            # One instruction may load two variables; the last is on top.
            top = i.argval[-1] if isinstance(i.argval, tuple) else i.argval
            path, key = Path(space or "argument", top), MISSING
            read.setdefault(path, line)
            continue
        elif name in ("STORE_GLOBAL", "STORE_DEREF"):
            written.add(Path("global" if "GLOBAL" in name else "cell", i.argval))
        elif path is None or name in ("NOP", "PUSH_NULL", "EXTENDED_ARG"):
            continue
        elif name in ("LOAD_CONST", "LOAD_SMALL_INT"):
            key = i.argval
            continue
        elif name in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR") and key is MISSING:
            step = i.argval
        elif is_item and isinstance(key, str | int):
            step = (key,)
        # `x.n += 1` copies `x` first, and so is no path.
        path = path and step and path._replace(steps=(*path.steps, step))
        key = MISSING
        if path is not None and "STORE" in name:
            written.add(path)
            path = None
        elif path is not None:
            read.setdefault(path, line)
    for inner in (x for x in code.co_consts if isinstance(x, types.CodeType)):
        inside = _paths(inner).items()
        read = {p: n for p, n in inside if p.space != "argument"} | read
    return {p: n for p, n in read.items() if not any(_begins(p, w) for w in written)}


_SPACES = {"LOAD_GLOBAL": "global", "LOAD_NAME": "global", "LOAD_DEREF": "cell"}


def _begins(path: Path, with_: Path) -> bool:
    n = len(with_.steps)
    return (path.space, path.name, path.steps[:n]) == tuple(with_)
