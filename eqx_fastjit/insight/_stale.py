"""Values that a trace has read beside its arguments, and that have changed since.

A trace keeps what its function read of globals, of variables of the function around it,
of entries of dictionaries there, and of attributes of plain objects. Calls do not see
that these change. It is a finding only if such a trace is called again.
"""

import collections
import dataclasses
import dis
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.tree_util as jtu
import numpy as np

from eqx_fastjit._callables import source_of
from eqx_fastjit._engine import engine_module
from eqx_fastjit._facts import is_users
from eqx_fastjit._statics import state_of
from eqx_fastjit._structure import DYNAMIC
from eqx_fastjit._texts import describe_static

from ._causes import Finding, make_finding
from ._describe import describe, Leaf
from ._events import Event
from ._why import line_of, name_of


# Values that are compared; anything else may change without being another one.
_VALUES = (bool, int, float, complex, str, bytes, type(None))
# How far to follow functions that a function calls.
_DEPTH = 2
# Of an array of NumPy that is compared.
_MAX_BYTES = 4096
# Calls of a function from which on only one in several is looked at.
_MANY_CALLS = 100
_ONE_IN = 16
_MISSING = object()


# --- what code reads ------------------------------------------------------------------


class _Path(NamedTuple):
    """What a function reads: `cfg["lr"]` is `cfg` of its globals, then one item."""

    # "global", "cell" or "argument".
    space: str
    name: str
    # An attribute's name, or a dictionary's key in a tuple.
    steps: tuple[Any, ...] = ()

    def __str__(self) -> str:
        steps = (f"[{s[0]!r}]" if isinstance(s, tuple) else f".{s}" for s in self.steps)
        return self.name + "".join(steps)


def _paths(code: types.CodeType) -> set[_Path]:
    """What code reads and does not write, functions defined inside included."""
    read: set[_Path] = set()
    written: set[_Path] = set()
    path: _Path | None = None
    key: Any = _MISSING
    for i in dis.get_instructions(code):
        name = i.opname
        if (space := _SPACES.get(name)) or "LOAD_FAST" in name:
            # One instruction may load two variables; the last is on top.
            top = i.argval[-1] if isinstance(i.argval, tuple) else i.argval
            path, key = _Path(space or "argument", top), _MISSING
        elif name in ("STORE_GLOBAL", "STORE_DEREF"):
            written.add(_Path("global" if "GLOBAL" in name else "cell", i.argval))
            path = None
        elif path is None or name in ("CACHE", "NOP", "PUSH_NULL", "EXTENDED_ARG"):
            continue
        elif name in ("LOAD_CONST", "LOAD_SMALL_INT"):
            key = i.argval
            continue
        elif name in ("LOAD_ATTR", "LOAD_METHOD") and key is _MISSING:
            path = path._replace(steps=(*path.steps, i.argval))
        elif _is_item(i) and isinstance(key, str | int):
            path, key = path._replace(steps=(*path.steps, (key,))), _MISSING
        else:
            if name == "STORE_ATTR":
                written.add(path._replace(steps=(*path.steps, i.argval)))
            elif name == "STORE_SUBSCR" and isinstance(key, str | int):
                written.add(path._replace(steps=(*path.steps, (key,))))
            # `x.n += 1` copies `x` first, and so is no path.
            path = None
        if path is not None:
            read.add(path)
    for inner in (x for x in code.co_consts if isinstance(x, types.CodeType)):
        read |= {p for p in _paths(inner) if p.space != "argument"}
    return {p for p in read if not any(_begins(p, w) for w in written)}


_SPACES = {"LOAD_GLOBAL": "global", "LOAD_NAME": "global", "LOAD_DEREF": "cell"}


def _is_item(instruction: dis.Instruction) -> bool:
    return instruction.opname == "BINARY_SUBSCR" or (
        instruction.opname == "BINARY_OP" and instruction.argrepr == "[]"
    )


def _begins(path: _Path, with_: _Path) -> bool:
    n = len(with_.steps)
    return (path.space, path.name, path.steps[:n]) == tuple(with_)


# --- values ---------------------------------------------------------------------------


def _root(path: _Path, function: types.FunctionType) -> Any:
    """The global or the cell that a path begins with."""
    if path.space == "global":
        return function.__globals__.get(path.name, _MISSING)
    if path.space == "cell" and path.name in function.__code__.co_freevars:
        cell = (function.__closure__ or ())[
            function.__code__.co_freevars.index(path.name)
        ]
        try:
            return cell.cell_contents
        except ValueError:  # it is empty
            return _MISSING
    return _MISSING


def _follow(value: Any, steps: tuple[Any, ...]) -> Any:
    """What is at the end of a path. No code of the user's is run."""
    for step in steps:
        if isinstance(step, tuple):
            value = value.get(step[0], _MISSING) if type(value) is dict else _MISSING
        else:
            value = _attribute(value, step)
    return value


def _attribute(owner: Any, name: str) -> Any:
    """An attribute that is stored, in an instance, its class, a class or a module."""
    if isinstance(owner, types.ModuleType) and not is_users(owner.__file__ or "<"):
        return _MISSING
    classes = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
    spaces = [] if isinstance(owner, type) else [_instance_dict(owner)]
    for space in (*spaces, *map(vars, classes)):
        if name in space:
            return space[name]
    return _MISSING


def _instance_dict(x: Any) -> dict[str, Any]:
    try:
        return object.__getattribute__(x, "__dict__")
    except AttributeError:
        return {}


class _Read:
    """A value as it was after a trace. It keeps no array alive, and no function."""

    def __init__(self, path: _Path, get: Callable[[], Any], value: Any):
        self.path = path
        self.get = get
        self.text = describe_static(value)
        self._is_array = isinstance(value, jax.Array)
        self._value = weakref.ref(value) if self._is_array else _content(value)

    @property
    def what(self) -> str:
        """What kind of thing it is."""
        if self.path.steps:
            is_item = isinstance(self.path.steps[-1], tuple)
            return "entry" if is_item else "attribute"
        return "global" if self.path.space == "global" else "variable"

    def is_other(self, now: Any) -> bool:
        """Whether the value now is another one."""
        if self._is_array:
            return now is not self._value()
        now = _content(now)
        return now is not self._value and (type(now), now) != (
            type(self._value),
            self._value,
        )


def _content(value: Any) -> Any:
    """What is compared of a value: all of a NumPy array, which may be written to."""
    return state_of(value) if isinstance(value, np.ndarray) else value


def _is_compared(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.nbytes <= _MAX_BYTES and not value.dtype.hasobject
    return isinstance(value, jax.Array) or type(value) in _VALUES


def _reads(function: Any, arguments: dict[str, Any], depth: int) -> Iterator[_Read]:
    """What a function, and the user's functions that it calls, read."""
    function = source_of(function)
    if function is None or not is_users(function.__code__.co_filename):
        return
    alive = weakref.ref(function)
    for path in sorted(_paths(function.__code__), key=str):
        if path.space == "argument":
            root = arguments.get(path.name, _MISSING)
        else:
            root = _root(path, function)
        value = _MISSING if root is _MISSING else _follow(root, path.steps)
        if _is_compared(value):
            get = _getter(path, alive, root)
            if get is not None:
                yield _Read(path, get, value)
        elif depth > 0 and isinstance(value, Callable) and path.space != "argument":
            yield from _reads(value, {}, depth - 1)


def _getter(path: _Path, function: Any, root: Any) -> Callable[[], Any] | None:
    """What reads a path again, without keeping anything of the user's alive."""
    if path.space == "argument":
        try:
            alive = weakref.ref(root)
        except TypeError:
            return None
        return lambda: _follow(alive(), path.steps) if alive() is not None else _MISSING

    def get() -> Any:
        alive = function()
        root = _MISSING if alive is None else _root(path, alive)
        return _MISSING if root is _MISSING else _follow(root, path.steps)

    return get


# --- traces and calls -----------------------------------------------------------------


@dataclasses.dataclass
class _Trace:
    """What one trace of a function has read."""

    event: Event
    # Shapes, dtypes and weak types that it was traced for.
    shapes: list[Any]
    reads: list[_Read]


class StaleValues:
    """Notes what each trace has read, and whether it was called after that changed."""

    def __init__(self) -> None:
        # By what JAX traces, which is kept as long as its specialization.
        self._traces: weakref.WeakKeyDictionary[Any, list[_Trace]] = (
            weakref.WeakKeyDictionary()
        )
        self._calls: collections.Counter[int] = collections.Counter()
        # What functions that are a part of a trace have read, by the event of that.
        self._parts: dict[int, list[_Read]] = collections.defaultdict(list)
        self._found: dict[Any, Finding] = {}

    def on_event(self, event: Event) -> None:
        """A trace is over. What it changed itself, such as a counter, is read now."""
        specialization = engine_module().active()
        if specialization is None or not event.traced or event.failed:
            return
        flat = specialization.flat
        source = flat.source and flat.source()
        reads = list(_reads(source, _plain_arguments(flat), _DEPTH))
        reads += self._parts.pop(event.number, [])
        if event.inside is not None:
            self._parts[event.inside] += reads
        elif reads:
            trace = _Trace(event, _shapes(event.signature), reads)
            self._traces.setdefault(flat, []).append(trace)

    def on_call(self, flat: Any, arrays: Sequence[Any]) -> None:
        """A specialization is about to be called, outside of all traces.

        **Arguments:**

        - `flat`: what JAX traces for it.
        - `arrays`: those of the call.
        """
        traces = self._traces.get(flat)
        if traces is None:
            return
        n = self._calls[flat.info.number] = self._calls[flat.info.number] + 1
        if n > _MANY_CALLS and n % _ONE_IN:
            return
        for trace in traces:
            for read, now in _changed(trace.reads):
                key = trace.event.function.key(), str(read.path)
                if key not in self._found and _is_for(trace, arrays):
                    self._found[key] = _finding(trace.event, read, now)

    def found(self) -> list[Finding]:
        """The values that changed before a call that did not see it."""
        return list(self._found.values())


def _is_for(trace: _Trace, arrays: Sequence[Any]) -> bool:
    """Whether a call with these arrays uses a trace: it has the same shapes."""
    leaves = describe([(str(i), x) for i, x in enumerate(arrays)])
    return _shapes(leaves) == trace.shapes


def _shapes(leaves: Sequence[Leaf]) -> list[Any]:
    return [(x.shape, x.dtype, x.weak_type) for x in leaves if x.kind == "array"]


def _plain_arguments(flat: Any) -> dict[str, Any]:
    """The arguments that are compared by identity, whatever their attributes are."""
    function, structure = flat.function(), flat.structure
    try:
        values = structure.rebuild([None] * structure.leaves.count(DYNAMIC))
        arguments = dict(function.arguments_of(values))
    except Exception:  # of a class that is not built of `None`
        return {}
    for x in tuple(arguments.values()):
        if isinstance(x, types.MethodType):  # what is jitted, and its instance
            arguments.setdefault(x.__code__.co_varnames[0], x.__self__)
    return {name: x for name, x in arguments.items() if _is_plain(x)}


def _is_plain(x: Any) -> bool:
    others = type, types.FunctionType, types.MethodType, types.ModuleType
    has_identity = type(x).__eq__ is object.__eq__ and not isinstance(x, others)
    return has_identity and jtu.all_leaves([x])


def _changed(reads: list[_Read]) -> Iterator[tuple[_Read, Any]]:
    for read in reads:
        now = read.get()
        if now is not _MISSING and read.is_other(now):
            yield read, now


def _finding(event: Event, read: _Read, now: Any) -> Finding:
    new = describe_static(now)
    facts = {
        "function": name_of(event.function),
        "what": read.what,
        "leaf": str(read.path),
        "old": read.text,
        "new": f"another {new}" if new == read.text else new,
    }
    return make_finding(
        "stale value",
        facts,
        line=line_of(event) or event.function.place,
        leaf=facts["leaf"],
        functions={facts["function"]: 1},
    )
