"""Globals that have changed since a trace that refers to them."""

import dis
import inspect
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from eqx_fastjit._engine import engine_module
from eqx_fastjit._facts import is_users
from eqx_fastjit._texts import describe_static

from ._causes import Finding, make_finding
from ._events import Event
from ._why import line_of, name_of


# Values that are compared; anything else may change without being another one.
_VALUES = (bool, int, float, complex, str, bytes, type(None))
# How far to follow functions that a function calls.
_DEPTH = 2


class _Read(NamedTuple):
    """A global as it was after a trace."""

    event: Event
    module: dict[str, Any]
    name: str
    value: Any
    text: str

    def is_stale(self) -> bool:
        """Whether the global has another value now."""
        now = self.module.get(self.name)
        is_value = type(now) in _VALUES and type(now) is type(self.value)
        return now is not self.value and not (is_value and now == self.value)

    def finding(self) -> Finding:
        """That it is stale."""
        old, new = self.text, describe_static(self.module.get(self.name))
        new = f"another {new}" if new == old else new
        function, leaf = name_of(self.event.function), self.name
        line = line_of(self.event) or self.event.function.place
        return make_finding(
            "stale global",
            {"function": function, "leaf": leaf, "old": old, "new": new},
            line=line,
            leaf=leaf,
            functions={function: 1},
        )


class StaleGlobals:
    """Notes which globals each trace has read, and finds those that changed since."""

    def __init__(self) -> None:
        # By the function and the name.
        self._reads: dict[Any, _Read] = {}

    def on_event(self, event: Event) -> None:
        """A trace is over. What it changed itself, such as a counter, is read now."""
        specialization = engine_module().active()
        if specialization is None or not event.traced or event.failed:
            return
        function = specialization.flat.function()
        if function is None or function.fun is None:  # gone, or a callable Module
            return
        for module, name in _globals_of(inspect.unwrap(function.fun()), _DEPTH):
            value = module[name]
            key = event.function.key(), id(module), name
            known = self._reads.get(key)
            if known and known.event.function.number == event.function.number:
                continue  # calls of the earlier trace still use what that has read
            if isinstance(value, jax.Array) or type(value) in _VALUES:
                text = describe_static(value)
                self._reads[key] = _Read(event, module, name, value, text)

    def found(self) -> list[Finding]:
        """Those that have changed."""
        return [read.finding() for read in self._reads.values() if read.is_stale()]


def _globals_of(function: Any, depth: int) -> Iterator[tuple[dict[str, Any], str]]:
    """The globals that a function and the user's functions that it calls read."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType) or not is_users(code.co_filename):
        return
    module = function.__globals__
    for name in _loaded(code) & module.keys():
        yield module, name
        if depth > 0:
            yield from _globals_of(module[name], depth - 1)


def _loaded(code: types.CodeType) -> set[str]:
    """The globals that code reads and does not write, functions inside included."""
    instructions = list(dis.get_instructions(code))
    names = {i.argval for i in instructions if i.opname == "LOAD_GLOBAL"}
    names -= {i.argval for i in instructions if i.opname == "STORE_GLOBAL"}
    inner = [x for x in code.co_consts if isinstance(x, types.CodeType)]
    return names.union(*map(_loaded, inner))
