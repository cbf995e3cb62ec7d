"""What a function read from around it when it was traced, and what is there now.

A trace keeps the globals, closure cells and default arguments that the function read.
A later change is ignored until a new shape has the function traced again, and then it
is suddenly seen. A `Snapshot` remembers what was there, without keeping it alive.

Taking one is cheap, because it goes by the *names* in the code, which may be too many;
which of them are read, and where, is looked up only for what has changed.
"""

# Values are anybody's: of what `isinstance` tells of them the rest is unknown.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import dataclasses
import dis
import functools as ft
import hashlib
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer

from eqx_fastjit import _record
from eqx_fastjit._describe import describe_static
from eqx_fastjit._record import Trace
from eqx_fastjit._static_keys import static_key
from eqx_fastjit._units import plural

from ._places import is_library
from ._table import Report, Table
from ._target import unwrapped


# How far to follow functions of the same module that the function calls.
_DEPTH = 2
_MAX_FUNCTIONS = 50
# Larger containers are compared by their identity and length; of larger NumPy arrays
# and strings only a sample counts.
_MAX_ITEMS = 100
_MAX_BYTES = 1 << 16
# Snapshots that are kept for one function: one for each of its last traces.
_MAX_SNAPSHOTS = 16

_ATOMS = (int, float, complex, bool, type(None), type(Ellipsis), np.generic)
_CONTAINERS = (tuple, list, dict, set, frozenset)
_MISSING: Any = object()


# --- standing in for a value ---------------------------------------------------------


class _Same:
    """Stands for an object by its identity, and does not keep it alive."""

    __slots__ = ("id", "ref")

    def __init__(self, value: Any):
        self.id = id(value)
        try:
            self.ref: Any = weakref.ref(value)
        except TypeError:
            self.ref = None

    def __eq__(self, other: object) -> bool:
        if type(other) is not _Same or self.id != other.id:
            return False
        # Where an object died, another one may have its address.
        return self.ref is None or self.ref() is not None

    __hash__ = None  # pyright: ignore


class _Budget:
    """How many more items may be looked at."""

    def __init__(self) -> None:
        self.items = _MAX_ITEMS


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _stand_in(x: Any, budget: _Budget) -> Any:
    """Something that is equal later on if, and only if, the value is the same.

    For large values: if they are the same as far as was looked.
    """
    cls = type(x)
    budget.items -= 1
    if isinstance(x, _ATOMS):
        return static_key(x)
    if isinstance(x, str | bytes):
        if len(x) <= _MAX_BYTES:
            data = x if isinstance(x, bytes) else x.encode(errors="surrogatepass")
            return (cls, x if len(x) <= 64 else _digest(data))
        return (cls, len(x), x[:64], x[-64:], _Same(x))
    if isinstance(x, np.ndarray):
        return (cls, x.shape, str(x.dtype), _array_contents(x))
    if cls in _CONTAINERS:
        if budget.items < len(x):
            return (cls, len(x), _Same(x))
        if isinstance(x, dict):
            items = [*x.keys(), *x.values()]
        elif isinstance(x, set | frozenset):
            # In an order that does not depend on how the set was made.
            items = sorted(x, key=lambda v: (type(v).__name__, hash(v)))
        else:
            items = list(x)
        return (cls, [_stand_in(v, budget) for v in items])
    return (cls.__qualname__, _Same(x))


def _array_contents(x: np.ndarray) -> Any:
    if x.dtype.hasobject:
        return _Same(x)
    if x.nbytes <= _MAX_BYTES:
        return _digest(x.tobytes())
    step = max(1, x.size * x.itemsize // _MAX_BYTES)
    return _digest(x.flat[::step].tobytes())


class _Value(NamedTuple):
    """A value as it was."""

    stand_in: Any
    shown: str
    # Of an object or module: those attributes that the code may read.
    attributes: dict[str, "_Value"]


def _is_plain_object(x: Any) -> bool:
    """An object that keeps settings: attributes that may be set, in a `__dict__`."""
    if isinstance(
        x,
        type
        | types.FunctionType
        | types.BuiltinFunctionType
        | types.MethodType
        | eqx.Module
        | jax.Array,
    ):
        return False
    return isinstance(getattr(x, "__dict__", None), dict) and not callable(x)


def _value(x: Any, names: frozenset[str], *, with_attributes: bool = True) -> _Value:
    attributes = {}
    if with_attributes and _is_plain_object(x):
        found = vars(x)
        for name in names & found.keys():
            part = found[name]
            # A module has functions and classes of its own: only settings count.
            if not isinstance(x, types.ModuleType) or _is_setting(part):
                attributes[name] = _value(part, names, with_attributes=False)
    return _Value(_stand_in(x, _Budget()), describe_static(x), attributes)


def _is_setting(x: Any) -> bool:
    return isinstance(x, (*_ATOMS, str, bytes, np.ndarray, *_CONTAINERS))


# --- a snapshot ----------------------------------------------------------------------


class _Place(NamedTuple):
    """Where a function reads a value that is not an argument."""

    function: Callable[[], types.FunctionType | None]  # a weak reference to it
    kind: str  # "global", "closure" or "default"
    name: str


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The values that a function could read from outside at some time.

    This includes the functions that it calls in its module.
    """

    values: tuple[tuple[_Place, _Value], ...] = ()


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


def _look_around(fun: Any) -> Iterator[tuple[_Place, _Value]]:
    first = _python_function(fun)
    if first is None:
        return
    pending, seen = [(first, 0)], {id(first)}
    while pending:
        function, depth = pending.pop()
        names = _names(function.__code__)
        for kind, name, value in _readable(function, names):
            if isinstance(value, types.ModuleType) and _is_library(value):
                continue
            if isinstance(value, Tracer):
                continue
            place = _Place(weakref.ref(function), kind, name)
            try:
                yield place, _value(value, names)
            except Exception:  # of a user's class, say
                continue
            helper = _python_function(value)
            if (
                helper is not None
                and helper.__module__ == first.__module__
                and id(helper) not in seen
                and depth < _DEPTH
                and len(seen) < _MAX_FUNCTIONS
            ):
                seen.add(id(helper))
                pending.append((helper, depth + 1))


def _python_function(x: Any) -> types.FunctionType | None:
    """The Python function behind a function, method, or jitted function."""
    if not callable(x) or isinstance(x, type):
        return None
    x = unwrapped(x)
    for _ in range(20):
        if isinstance(x, types.FunctionType):
            inner = getattr(x, "__wrapped__", None)
            if not callable(inner):
                return x
            x = inner
        elif isinstance(x, ft.partial | eqx.Partial):
            x = x.func
        elif isinstance(x, types.MethodType):
            x = x.__func__
        elif isinstance(x, eqx.Module) or hasattr(x, "__wrapped__"):
            x = getattr(x, "__wrapped__", None) or type(x).__call__
        else:
            return None
    return None


_library_names = frozenset({"jax", "jaxlib", "equinox", "numpy", "scipy", "optax"})


def _is_library(module: types.ModuleType) -> bool:
    top = module.__name__.partition(".")[0]
    if top in _library_names or top in sys.stdlib_module_names:
        return True
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and is_library(file)


@ft.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> frozenset[str]:
    """Names that code, or code inside of it, may look up in a module or an object.

    No variable of any function is among them: what code inside reads of the code around
    it may have the name of a global, and is none.
    """
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return frozenset(names)


def _readable(
    function: types.FunctionType, names: frozenset[str]
) -> Iterator[tuple[str, str, Any]]:
    """Kind, name and value of what a function may read."""
    known = function.__globals__
    for name in sorted(names & known.keys()):
        yield "global", name, known[name]
    for name in function.__code__.co_freevars:
        value = _current(function, "closure", name)
        if value is not _MISSING:
            yield "closure", name, value
    for name, value in _defaults(function).items():
        yield "default", name, value


def _defaults(function: types.FunctionType) -> dict[str, Any]:
    values = function.__defaults__ or ()
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    named = dict(zip(positional[len(positional) - len(values) :], values, strict=True))
    return {**named, **(function.__kwdefaults__ or {})}


def _current(function: types.FunctionType, kind: str, name: str) -> Any:
    """The value now, or `_MISSING`."""
    if kind == "global":
        return function.__globals__.get(name, _MISSING)
    if kind == "default":
        return _defaults(function).get(name, _MISSING)
    cells = dict(
        zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    )
    try:
        return cells[name].cell_contents
    except (KeyError, ValueError):
        return _MISSING


# --- what has changed ----------------------------------------------------------------


def changed(snapshot: Snapshot) -> list[Change]:
    """What has changed since a snapshot. Never raises.

    **Arguments:**

    - `snapshot`: from `snapshot`.

    **Returns:** a `Change` for each name that the code reads and whose value differs.
    """
    out: list[Change] = []
    for place, value in snapshot.values:
        try:
            out += _compare(place, value)
        except Exception:
            continue
    return out


def _compare(place: _Place, then: _Value) -> Iterator[Change]:
    function = place.function()
    if function is None:
        return
    current = _current(function, place.kind, place.name)
    lines = _reads(function.__code__)
    line = lines.get((place.kind, place.name), 0)
    if place.kind == "default":
        line = function.__code__.co_firstlineno
    elif not line:
        return  # a name of something else, an attribute say
    file = function.__code__.co_filename
    name = function.__qualname__
    if current is _MISSING:
        yield Change(place.name, place.kind, file, line, name, then.shown, "<deleted>")
        return
    now = _value(current, frozenset(then.attributes))
    if now.stand_in != then.stand_in:
        old, new = then.shown, now.shown
        if old == new:
            new = f"another {new}" if _is_identity(now) else f"{new}, changed"
        yield Change(place.name, place.kind, file, line, name, old, new)
        return
    for attribute, old in then.attributes.items():
        path = (place.kind, place.name, attribute)
        if path not in lines:
            continue
        new = now.attributes.get(attribute)
        if new is None or new.stand_in != old.stand_in:
            shown = "<deleted>" if new is None else new.shown
            if shown == old.shown:
                shown += ", changed"
            full = f"{place.name}.{attribute}"
            yield Change(full, "attribute", file, lines[path], name, old.shown, shown)


def _is_identity(value: _Value) -> bool:
    return type(value.stand_in) is tuple and type(value.stand_in[-1]) is _Same


# How code reads a name. In the body of a class, `LOAD_NAME` may also be a name of the
# class itself; what is stored there is left out.
_KINDS = {
    "LOAD_GLOBAL": "global",
    "LOAD_NAME": "global",
    "LOAD_FROM_DICT_OR_GLOBALS": "global",
    "LOAD_DEREF": "closure",
    "LOAD_CLASSDEREF": "closure",
    "LOAD_FROM_DICT_OR_DEREF": "closure",
}
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


@ft.lru_cache(maxsize=256)
def _reads(code: types.CodeType) -> dict[tuple[str, ...], int]:
    """The line that first reads a name from outside of the code, or an attribute of it.

    By kind ("global" or "closure") and name, or kind, name and attribute.
    """
    out: dict[tuple[str, ...], int] = {}
    line = code.co_firstlineno
    previous: tuple[str, ...] | None = None
    instructions = list(dis.get_instructions(code))
    stored = {str(i.argval) for i in instructions if i.opname == "STORE_NAME"}
    for instruction in instructions:
        positions = instruction.positions
        if positions is not None and positions.lineno is not None:
            line = positions.lineno
        name = str(instruction.argval)
        if (kind := _KINDS.get(instruction.opname)) is not None:
            previous = (kind, name)
            if instruction.opname != "LOAD_NAME" or name not in stored:
                out.setdefault(previous, line)
            continue
        if instruction.opname in _ATTRIBUTES and previous is not None:
            out.setdefault((*previous, name), line)
        previous = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for path, inner in _reads(constant).items():
                out.setdefault(path, inner)
    # A variable of this very code that code inside reads does not come from outside.
    own = set(code.co_cellvars)
    return {
        path: line
        for path, line in out.items()
        if path[0] == "global" or path[1] not in own
    }


# --- by function ---------------------------------------------------------------------

_lock = threading.RLock()  # a signal handler may call a jitted function, too
_snapshots: weakref.WeakKeyDictionary[types.FunctionType, dict[Any, Snapshot]] = (
    weakref.WeakKeyDictionary()
)


def watch(f: Any, key: Any = None) -> None:
    """Remember, for `captures`, what a function would read if it were traced now.

    Never raises. It is called when the function is traced, not on each call.

    **Arguments:**

    - `f`: a function, jitted or not.
    - `key`: identifies the trace; a newer snapshot replaces one with an equal key. Must
        be hashable, and is kept alive.
    """
    try:
        function = _python_function(f)
        if function is None:
            return
        taken = snapshot(f)
        with _lock:
            kept = _snapshots.setdefault(function, {})
            kept.pop(key, None)
            kept[key] = taken
            while len(kept) > _MAX_SNAPSHOTS:
                del kept[next(iter(kept))]
    except Exception:
        pass


def remember(f: Any, key: Any, more: Snapshot) -> None:
    """Add to what was remembered of a trace. Arguments as of `watch`."""
    function = _python_function(f)
    with _lock:
        kept = {} if function is None else _snapshots.get(function, {})
        if key in kept:
            kept[key] = Snapshot((*kept[key].values, *more.values))


def _on_trace(trace: Trace, source: Any) -> None:
    watch(source, trace.number)


# From the import of `eqx_fastjit.insight` on; 1 ms at most, and only where something is
# traced.
_record.before.append(_on_trace)


@dataclasses.dataclass(frozen=True)
class Captures(Report):
    """What `captures` found."""

    name: str
    changes: tuple[Change, ...]
    # How many traces have been looked at.
    snapshots: int

    def title(self) -> str:
        """The number of changes, in a line."""
        n = len(self.changes)
        values = f"{plural(n, 'value')} {'has' if n == 1 else 'have'}"
        traces = f"its {self.snapshots} traces" if self.snapshots != 1 else "its trace"
        return f"{self.name}: {values if n else 'nothing has'} changed since {traces}"

    def tables(self) -> list[Table]:
        """The changes."""
        rows = [
            (c.name, c.kind, c.where, c.function, c.old, c.new) for c in self.changes
        ]
        notes = ()
        if rows:
            notes = (
                "Earlier traces still use the old value. Pass it as an argument, "
                "or call `f.clear_cache()` after a change.",
            )
        header = ("name", "kind", "read at", "in", "when traced", "now")
        return [Table("Changed since the trace", header, rows, notes)]


def captures(f: Any) -> Captures:
    """Values from outside that a function read while tracing, and that changed since.

    These are globals, closure cells and defaults. The names in the function's code are
    searched, those in the functions of the same module that it calls (two levels), and
    attributes of plain objects (one level). Large arrays are compared by a sample;
    large containers and other objects, by identity.

    **Arguments:**

    - `f`: a function that was traced by `eqx_fastjit.filter_jit` after
        `eqx_fastjit.insight` was imported, or that `watch` was called with.

    **Returns:** a `Captures`. Raises `ValueError` if nothing is known about `f`, and
    `TypeError` if it is not a function.
    """
    if not callable(f):
        raise TypeError(f"expected a function; got a {type(f).__name__}")
    function = _python_function(f)
    name = getattr(f, "__name__", type(f).__name__)
    with _lock:
        kept = {} if function is None else dict(_snapshots.get(function, {}))
    if not kept:
        raise ValueError(
            f"it is not known what {name} read: import `eqx_fastjit.insight`, or call "
            "`insight.watch(f)`, before its first call"
        )
    found: dict[tuple[str, str, str, int], Change] = {}
    for taken in kept.values():
        for change in changed(taken):
            key = (change.name, change.kind, change.file, change.line)
            found.setdefault(key, change)
    return Captures(name, tuple(found.values()), len(kept))
