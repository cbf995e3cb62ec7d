"""The values that functions have read from their modules during a trace.

`_captures` follows the functions that the traced one names. Methods of its arguments,
and functions that it was handed, it cannot follow; which of them ran is known only once
the trace is there, from its equations. What they read has to be remembered before.
"""

import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from jax.core import Tracer

from eqx_fastjit import _record
from eqx_fastjit._record import Trace
from eqx_fastjit._signals import listed
from eqx_fastjit.doctor._sites import is_library

from ._captures import remember
from ._equations import read_jaxpr, Scope
from ._places import begins_trace
from ._reads import current_value, is_library_module, MISSING, reads
from ._snapshots import changed, Read, Snapshot
from ._stand_ins import is_plain_object, Value, value_of


# Of a program that has more modules of its own, the rest is not looked at.
_MAX_MODULES = 200
# Calls that go on at the same time, nested or in threads.
_MAX_BEGUN = 64


class Around(NamedTuple):
    """A module of the program, before a trace."""

    variables: dict[str, Any]
    # Those among them that are values.
    values: dict[str, Value]


# By file.
Surroundings = dict[str, Around]


def surroundings() -> Surroundings:
    """The values of all global variables of the program's own modules."""
    own = [
        module
        for module in listed(sys.modules.values())
        if isinstance(file := getattr(module, "__file__", None), str)
        and not is_library(file)
    ]
    # Modules are variables of each other: looked at once, that is a third of the time.
    modules: dict[types.ModuleType, Value | None] = {}
    return {
        str(module.__file__): Around(vars(module), dict(_values(vars(module), modules)))
        for module in own[:_MAX_MODULES]
    }


_CODE = (types.FunctionType, type, Tracer)


def _values(
    variables: dict[str, Any], modules: dict[types.ModuleType, Value | None]
) -> Iterator[tuple[str, Value]]:
    for name, x in listed(variables.items()):
        # `__spec__`, `__builtins__` and the like are half of all.
        if isinstance(x, _CODE) or (name.startswith("__") and name.endswith("__")):
            continue
        is_module = type(x) is types.ModuleType
        if is_module and x not in modules:
            modules[x] = _value(x)
        value = modules[x] if is_module else _value(x)
        if value is not None:
            yield name, value


def _value(x: Any) -> Value | None:
    try:
        if isinstance(x, types.ModuleType) and is_library_module(x):
            return None
        attributes: dict[str, Any] = x.__dict__ if is_plain_object(x) else {}
        return value_of(x, frozenset(attributes))
    except Exception:  # of a user's class, say
        return None


def read_by(codes: set[types.CodeType], around: Surroundings) -> Snapshot:
    """A snapshot of those variables that these functions read, and do not write.

    `around` is from before the trace in which they ran.
    """
    found: list[Read] = []
    for code in codes:
        variables, values = around.get(code.co_filename, Around({}, {}))
        # Stands for the function, of which only the code is known.
        ran: Any = types.SimpleNamespace(
            __code__=code, __globals__=variables, __qualname__=code.co_qualname
        )
        for kind, name, *rest in reads(code):
            if kind != "global" or rest or name not in values:
                continue
            if current_value(ran, kind, name) is not MISSING:
                found.append(Read(lambda ran=ran: ran, kind, name, values[name]))
    # A count of traces, say, which the trace itself has changed.
    written = {change.name for change in changed(Snapshot(tuple(found)))}
    kept = (read for read in found if read.name not in written)
    return Snapshot(tuple(_without(read, written) for read in kept))


def _without(read: Read, written: set[str]) -> Read:
    kept = {
        name: x
        for name, x in read.value.attributes.items()
        if f"{read.name}.{name}" not in written
    }
    return read._replace(value=read.value._replace(attributes=kept))


def executed(scope: Scope) -> set[types.CodeType]:
    """The code of the program's own functions that made the equations of a jaxpr."""
    codes: set[types.CodeType] = set()
    stacks: set[Any] = set()
    for inner in scope.distinct():
        for equation in inner.equations:
            instruction = equation.instruction
            if instruction is None or instruction.users in stacks:
                continue
            stacks.add(instruction.users)
            stack = [code for code, _ in instruction.stack]
            # What is below the outermost of our functions is the call, not the trace.
            files = [(code.co_filename, code.co_name) for code in stack]
            starts = [i for i, where in enumerate(files) if begins_trace(*where)]
            codes.update(stack[: starts[-1]] if starts else stack)
    return {code for code in codes if not is_library(code.co_filename)}


# --- for `captures` ------------------------------------------------------------------


# Of traces that have begun, by number: the function, and what was around it.
_begun: dict[int, tuple[weakref.ref[Any], Surroundings]] = {}


def _on_trace(trace: Trace, source: Any) -> None:
    if trace.inside is not None:
        return
    try:
        _begun[trace.number] = weakref.ref(source), surroundings()
    except Exception:  # without it `captures` knows less
        pass
    while len(_begun) > _MAX_BEGUN:  # of calls that have raised
        _begun.pop(next(iter(_begun)), None)


def _on_called(trace: Trace, jitted: Any, arrays: list[Any]) -> None:
    if (begun := _begun.pop(trace.number, None)) is None or not trace.retraced:
        return
    source, around = begun
    if (function := source()) is None:
        return
    from eqx_fastjit._specialization import kept_trace

    try:
        ran = executed(read_jaxpr(kept_trace(jitted, arrays).jaxpr))
        remember(function, trace.number, read_by(ran, around))
    except Exception:
        pass


_record.before.append(_on_trace)
_record.called.append(_on_called)
