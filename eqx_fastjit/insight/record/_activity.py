"""What the main thread did beside compiling, calling and waiting, by its samples.

Each sample is of one activity, and of one statement of the user's: a library's frame
says nothing of what to edit. Statements are told by the loop that runs them, as what
matters in a long run is what each iteration does.
"""

import ast
import builtins
import collections
import functools
import itertools
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import BuiltinFunctionType, ModuleType
from typing import Any, NamedTuple

import jax

from eqx_fastjit import _blocking, _facts, _traced
from eqx_fastjit._facts import is_written_by_user, Place

from . import _calls
from ._samples import Position, Stack
from ._statements import (
    expression_of,
    in_innermost_loop,
    MOVING,
    place_of,
    Statement,
    statement_at,
    statement_of,
)
from ._waits import EQUINOX_JIT
from ._why import costliest


# What Python did: operations of JAX outside of jit; making arrays of NumPy's into those
# of JAX; calls of functions of `jax.jit`; calls of this library's, beside those of what
# they compile; imports; anything else. And what the device did while Python waited for
# it, where that is not known exactly.
OPERATIONS, TRANSFERS, JIT = "operations", "transfers", "jit"
DISPATCH, IMPORTS, PYTHON, DEVICE = "dispatch", "imports", "python", "device"

_JAX = os.path.dirname(jax.__file__) + os.sep
_OWN = os.path.dirname(_facts.__file__) + os.sep
# In these, a function is called that was jitted by others; and in all of these, it is
# traced.
_PJIT = os.path.join(_JAX, "_src", "pjit.py")
_JITTING = (_PJIT, EQUINOX_JIT)
_TRACING = (*_JITTING, _traced.__file__)
# Functions by which Python reads the values of arrays (the wait is known exactly), or
# their shapes.
_READING = {
    *("__float__", "__int__", "__bool__", "__index__", "__complex__", "__array__"),
    *("_item", "tolist", "__format__", "__str__", "__repr__", "device_get"),
    *("size", "ndim", "nbytes", "__len__"),
}
# The seconds of what is in this file are known exactly.
_KNOWN = _calls.__file__
_WAITING = _blocking._wait_for.__code__  # pyright: ignore


class Activity(NamedTuple):
    """What a statement did, in seconds of samples."""

    kind: str
    # The statement in the innermost loop of the user's, or else the innermost one.
    statement: Statement
    # The first line of that loop, if there is one.
    loop: Place | None
    seconds: float
    # Of these, those in C for long, where it computes; and those in which an array is
    # copied to set a part of it.
    computing: float = 0.0
    copying: float = 0.0
    # The innermost line of the user's that has most of it.
    most: Place | None = None

    @property
    def is_direct(self) -> bool:
        """Whether the statement itself has most of it, rather than what it calls."""
        here = self.statement.place[:2]
        return self.most is None or statement_at(self.most).place[:2] == here

    @property
    def may_be_at_once(self) -> bool:
        """Whether its iterations could run at once. (A model changes nothing.)"""
        is_known = self.is_direct or (self.most and statement_at(self.most).is_of_model)
        return bool(is_known) and self.statement.may_be_at_once


def in_loop(stack: Iterable[Position]) -> tuple[Statement, Place | None]:
    """The statement in the innermost loop, and the first line of that loop.

    `stack`: positions in the user's code, innermost first. Without a loop, the
    innermost statement.
    """
    statements = [statement_of(x) for x in stack]
    found = in_innermost_loop(statements)
    return (found, found.around) if found else (statements[0], None)


def activities(
    samples: Mapping[Stack, float],
    ours: Iterable[Place] = (),
    others: Iterable[Place] = (),
) -> list[Activity]:
    """The activities of samples, of those whose seconds are not known exactly.

    `ours`, `others`: lines that call functions that are jitted by this library, and by
    `jax.jit`. Such a call may leave no frame.
    """
    ours, others = {*ours}, {*others}
    seconds = collections.defaultdict[tuple[str, Statement, Place | None], float](float)
    computing, copying = seconds.copy(), seconds.copy()
    lines = collections.defaultdict[Any, list[tuple[Place, float]]](list)
    for (positions, is_in_c, is_waiting), took in samples.items():
        kind = kind_of(positions, ours, others)
        if not kind:
            continue

        users = [x for x in positions if is_written_by_user(x.code)]
        statement, loop = in_loop(users) if users else (_NOWHERE, None)
        # To make an array of a number, say, waits while too many calls are in flight;
        # and what NumPy reads by itself (`x[i]` of its `x`) is noted as a call begins.
        moves = kind == TRANSFERS and not statement.moves_the_same
        if is_waiting and (moves or kind == DISPATCH):
            kind = DEVICE

        what = kind, statement, loop
        copies = bool(users) and statement_of(users[0]).sets_part
        seconds[what] += took
        computing[what] += took * (is_in_c and not copies)
        copying[what] += took * copies
        if users:
            lines[what].append((place_of(users[0]), took))
    return [
        Activity(*what, took, computing[what], copying[what], costliest(lines[what]))
        for what, took in seconds.items()
    ]


_NOWHERE = Statement(Place("", 0, ""))


def within_user(stack: Iterable[Position]) -> list[Position]:
    """The libraries' frames within the innermost one of the user's."""
    return [*itertools.takewhile(lambda x: not is_written_by_user(x.code), stack)]


def kind_of(
    stack: Sequence[Position],
    ours: Collection[Place] = (),
    others: Collection[Place] = (),
) -> str:
    """What a stack was doing; nothing if its seconds are known otherwise."""
    inside = [x.code for x in within_user(stack)][::-1]  # outermost first
    around = stack[len(inside) :]
    user = around[0] if around else None

    files = [x.co_filename for x in inside]
    is_traced = any(x.code.co_filename in _TRACING for x in around)
    if is_traced or _KNOWN in files or _WAITING in inside:
        return ""
    if any(x.startswith("<frozen importlib") for x in files):
        return IMPORTS
    if files and files[0].startswith(_OWN):
        return DISPATCH if user else PYTHON
    if files and files[0] in _JITTING:
        return JIT
    if files and files[0].startswith(_JAX) and inside[0].co_name in _READING:
        return PYTHON
    # In some cases JAX calls what is jitted by Python code of its own.
    if user and _PJIT in files[1:2] and _kind_of_call(user, ours, others) == JIT:
        return JIT
    if any(x.startswith(_JAX) for x in files):
        is_moved = files[0].startswith(_JAX) and inside[0].co_name in MOVING
        return TRANSFERS if is_moved else OPERATIONS
    # A call of a jitted function flattens Modules, or makes a named tuple, by generated
    # code.
    is_generated = not files or files[0].startswith("<")
    if user is None or not is_generated:
        return PYTHON
    return _kind_of_call(user, ours, others)


def _kind_of_call(
    position: Position, ours: Collection[Place], others: Collection[Place]
) -> str:
    """What the user's code called that has no frame, as it is no Python."""
    if not isinstance(expression_of(position), ast.Call):
        return PYTHON
    if kind := _kind_of_global(position):
        return kind
    place = place_of(position)
    if place in others:
        return JIT
    return DISPATCH if place in ours else PYTHON


@functools.lru_cache(maxsize=1 << 16)
def _kind_of_global(position: Position) -> str:
    """What is called by the name of a global, or of one in a module."""
    called = expression_of(position)
    function = called.func if isinstance(called, ast.Call) else None
    names: list[str] = []
    while isinstance(function, ast.Attribute):
        names.insert(0, function.attr)
        function = function.value
    if not isinstance(function, ast.Name):
        return ""

    modules = [*sys.modules.values()]
    file = position.code.co_filename
    found: Any = next((x for x in modules if getattr(x, "__file__", "") == file), None)
    for name in (function.id, *names):
        if not isinstance(found, ModuleType):  # of other objects, code may be run
            return ""
        found = vars(found).get(name)
    if found is None and not names:
        found = getattr(builtins, function.id, None)
    if str(getattr(found, "__module__", "")).startswith("jax."):
        return OPERATIONS
    if isinstance(found, BuiltinFunctionType | type):
        return PYTHON
    return JIT if isinstance(found, type(jax.jit(id))) else ""
