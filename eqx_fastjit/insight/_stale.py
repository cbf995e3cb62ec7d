"""Globals that have changed since a trace read them: calls still use the old value."""

import dis
import inspect
import types
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from eqx_fastjit import _events
from eqx_fastjit._describe import describe_static
from eqx_fastjit._events import Event
from eqx_fastjit._place import is_users, Place


# Values that are compared; anything else may change without being another one.
_VALUES = (bool, int, float, complex, str, bytes, type(None))
# How far to follow functions that a function calls.
_DEPTH = 3


class Stale(NamedTuple):
    """A global that a trace has read, and its text then and now."""

    function: str
    line: Place | None
    name: str
    old: str
    new: str


class _Read(NamedTuple):
    """A global as it was after a trace, a weak reference in place of an array."""

    number: int
    function: str
    line: Place | None
    name: str
    module: dict[str, Any]
    value: Any
    text: str
    # Of the other value, once there is one.
    new: str | None = None


class StaleGlobals:
    """Notes which globals each trace has read, and finds those that changed since."""

    def __init__(self) -> None:
        # By the module and the name, once for each function.
        self._reads: dict[tuple[Any, int, str], _Read] = {}

    @property
    def found(self) -> list[Stale]:
        """Those that changed, but of functions that were made anew afterwards."""
        return [
            Stale(read.function, read.line, read.name, read.text, read.new)
            for read in self._reads.values()
            if read.new is not None
        ]

    def on_event(self, event: Event) -> None:
        """A trace is over. What it changed itself, such as a counter, is read now."""
        specialization = _events._active()
        if specialization is None or not event.traced or event.failed:
            return
        number, key = event.function.number, event.function.key()
        for read in list(self._reads):
            if read[0] == key and self._reads[read].number != number:
                del self._reads[read]  # that function has been made anew
        self.check()
        function = specialization.flat.function()
        if function is None or function.fun is None:  # gone, or a callable Module
            return
        fun = inspect.unwrap(function.fun())
        for module, name in _globals_of(fun, _DEPTH):
            value = module[name]
            is_array = isinstance(value, jax.Array)
            if is_array or type(value) in _VALUES:
                kept = weakref.ref(value) if is_array else value
                text = describe_static(value)
                line = event.frames[0] if event.frames else event.function.place
                name_of = event.function.qualname
                read = _Read(number, name_of, line, name, module, kept, text)
                self._reads.setdefault((key, id(module), name), read)

    def check(self) -> None:
        """Look for changes."""
        for key, read in list(self._reads.items()):
            now = read.module.get(read.name)
            if read.new is not None or _is_same(read.value, now):
                continue
            new = describe_static(now)
            if isinstance(now, jax.Array) and new == read.text:
                new = f"another {new}"
            self._reads[key] = read._replace(new=new)


def _is_same(kept: Any, now: Any) -> bool:
    if isinstance(kept, weakref.ref):
        return kept() is now
    return type(kept) is type(now) and (kept == now or kept is now)


def _globals_of(function: Any, depth: int) -> Iterator[tuple[dict[str, Any], str]]:
    """The globals that a function reads, and the user's functions that it calls."""
    if not isinstance(function, types.FunctionType) or depth == 0:
        return
    module = function.__globals__
    for name in _loaded(function.__code__):
        if name not in module:
            continue
        yield module, name
        value = module[name]
        code = getattr(value, "__code__", None)
        if isinstance(code, types.CodeType) and is_users(code.co_filename):
            yield from _globals_of(value, depth - 1)


def _loaded(code: types.CodeType) -> set[str]:
    """The globals that code reads and does not write, functions inside included."""
    instructions = list(dis.get_instructions(code))
    names = {i.argval for i in instructions if i.opname == "LOAD_GLOBAL"}
    names -= {i.argval for i in instructions if i.opname == "STORE_GLOBAL"}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _loaded(constant)
    return names
