"""What the functions that ran during a trace have read from their modules.

`_captures` follows the functions that the traced one names. Methods of its arguments,
and functions that it was handed, it cannot follow; which of them ran is known only once
the trace is there, from its equations. What they read has to be remembered before.
"""

# pyright: reportPrivateUsage=false

import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

from jax.core import Tracer

from eqx_fastjit import _record
from eqx_fastjit._record import Trace

from ._captures import (
    _current,
    _is_library,
    _is_plain_object,
    _MISSING,
    _Place,
    _reads,
    _Value,
    _value,
    changed,
    remember,
    Snapshot,
)
from ._equations import read_jaxpr, Scope
from ._places import instruction_of, is_library, is_trace


# Of a program that has more modules of its own, the rest is not looked at.
_MAX_MODULES = 200
# Calls that go on at the same time, nested or in threads.
_MAX_BEGUN = 64

# By file: the module's variables, and those among them that are values.
Surroundings = dict[str, tuple[dict[str, Any], dict[str, _Value]]]


class _Ran:
    """Stands for a function of which only the code is known."""

    def __init__(self, code: types.CodeType, variables: dict[str, Any]):
        self.__code__ = code
        self.__globals__ = variables
        self.__qualname__ = code.co_qualname


def surroundings() -> Surroundings:
    """The values of all global variables of the program's own modules."""
    own = [
        module
        for module in list(sys.modules.values())
        if isinstance(file := getattr(module, "__file__", None), str)
        and not is_library(file)
    ]
    return {
        str(module.__file__): (vars(module), dict(_values(vars(module))))
        for module in own[:_MAX_MODULES]
    }


def _values(variables: dict[str, Any]) -> Iterator[tuple[str, _Value]]:
    for name, value in list(variables.items()):
        if isinstance(value, types.FunctionType | type | Tracer):
            continue
        if isinstance(value, types.ModuleType) and _is_library(value):
            continue
        try:
            attributes = frozenset(vars(value) if _is_plain_object(value) else ())
            yield name, _value(value, attributes)
        except Exception:  # of a user's class, say
            continue


def read_by(codes: set[types.CodeType], around: Surroundings) -> Snapshot:
    """A snapshot of those variables that these functions read, and do not write.

    **Arguments:**

    - `codes`: of the functions that ran.
    - `around`: from `surroundings`, before the trace.
    """
    found: list[tuple[_Place, _Value]] = []
    for code in codes:
        variables, values = around.get(code.co_filename, ({}, {}))
        ran: Any = _Ran(code, variables)
        for kind, name, *rest in _reads(code):
            if kind == "global" and not rest and name in values:
                place = _Place(lambda ran=ran: ran, kind, name)
                if _current(ran, kind, name) is not _MISSING:
                    found.append((place, values[name]))
    # A count of traces, say, which the trace itself has changed.
    written = {change.name for change in changed(Snapshot(tuple(found)))}
    return Snapshot(
        tuple(
            (place, _without(value, place.name, written))
            for place, value in found
            if place.name not in written
        )
    )


def _without(value: _Value, name: str, written: set[str]) -> _Value:
    kept = {
        attribute: x
        for attribute, x in value.attributes.items()
        if f"{name}.{attribute}" not in written
    }
    return value._replace(attributes=kept)


def executed(scope: Scope) -> set[types.CodeType]:
    """The code of the program's own functions that made the equations of a jaxpr."""
    codes: set[types.CodeType] = set()
    stacks: set[Any] = set()
    for inner in scope.distinct():
        for equation in inner.equations:
            instruction = instruction_of(equation.jax)
            if instruction is None or instruction.users in stacks:
                continue
            stacks.add(instruction.users)
            stack = [code for code, _ in instruction.stack]
            # What is below the outermost of our functions is the call, not the trace.
            starts = [i for i, code in enumerate(stack) if is_trace(code)]
            codes.update(stack[: starts[-1]] if starts else stack)
    return {code for code in codes if not is_library(code.co_filename)}


# --- for `captures` ------------------------------------------------------------------

# By number of a trace that has begun: its function, weakly, and what was around it.
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
    from eqx_fastjit._function import kept_trace

    try:
        ran = executed(read_jaxpr(kept_trace(jitted, arrays).jaxpr))
        remember(function, trace.number, read_by(ran, around))
    except Exception:
        pass


_record.before.append(_on_trace)
_record.called.append(_on_called)
