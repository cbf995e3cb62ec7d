"""Operations outside of jit: each is a program of its own.

A few are compiled once, as a program starts. What a line compiles again and again is
waste: its operands have other shapes each time, or a function that it is given is made
anew. So is what a line compiles, or a function that calls nothing jitted, if that is
much: it could be one program.
"""

import collections
import itertools
import sys
import traceback
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from eqx_fastjit._blocking import opened
from eqx_fastjit._facts import is_written_by_user, Place

from ._equations import CONTROL_FLOW, JAX
from ._events import Event
from ._programs import show_aval
from ._rules import part_of, Row
from ._why import costliest, is_operation, line_of
from ._words import listed, shortened


# How often an operation is compiled at a line that is no accident: models may have
# layers of a few widths.
_LEAST = 5
# From how many operations on a line, or a function that jits nothing, has a row; and
# about which part of their seconds one program takes in their place.
_MANY, _LEFT = 20, 0.25
# In these functions models and states are made, of whichever library.
_MAKERS = ("__init__", "init", "init_fn")
# Equations that are looked at, operands that are shown.
_MAX_EQUATIONS, _SHOWN = 50, 3


class Operation(NamedTuple):
    """An operation outside of jit, as it is compiled."""

    # The shapes of its operands and of its results.
    operands: str = ""
    results: str = ""
    # Whether it is `scan`, `cond` or the like, which runs a function of the user's.
    is_loop: bool = False
    # Whether it is there to make a model, or an optimiser's state.
    is_making: bool = False
    # For each of the user's functions, innermost first: what tells this call of it from
    # others, and the instruction; and what tells the call that it makes there.
    calls: tuple[tuple[Any, Any], ...] = ()


def operation(jaxpr: Any) -> Operation:
    """The operation that is being compiled in this thread."""
    stack = [*traceback.walk_stack(sys._getframe(1))]
    is_making = any(_is_maker(frame.f_code) for frame, _ in stack)
    inner = opened(jaxpr)
    if inner is None:
        return Operation(is_making=is_making)
    calls = [
        ((_marked(frame), frame.f_lasti), _marked(called))
        for (called, _), (frame, _) in itertools.pairwise(stack)
        if is_written_by_user(frame.f_code)
    ]
    operands, results = ([*map(show_aval, x)] for x in (inner.invars, inner.outvars))
    return Operation(
        _listed(operands),
        _listed(results),
        any(e.primitive.name in CONTROL_FLOW for e in inner.eqns[:_MAX_EQUATIONS]),
        is_making,
        tuple(calls),
    )


def _marked(frame: FrameType) -> Any:
    """What tells a frame from others: its trace function, which nothing calls.

    Another frame may have the `id` of one that is gone, and there are no weak
    references to frames.
    """
    if frame.f_trace is None:
        frame.f_trace = lambda *_: None
    return frame.f_trace


def _listed(shapes: list[str]) -> str:
    return f"({', '.join(shapes[:_SHOWN] + ['...'] * (len(shapes) > _SHOWN))})"


def _is_maker(code: CodeType) -> bool:
    return code.co_name in _MAKERS and not code.co_filename.startswith(JAX)


def program_key(event: Event) -> tuple[str, str]:
    """The same for operations of one program, which JAX had."""
    program = event.program
    return event.function.name, program.same if program else f"{event.number}"


class _Repeated(NamedTuple):
    """Compilations of one operation at one line, and below a line that repeats it."""

    line: Place
    events: list[Event]
    # What tells the calls from others that the line made again and again, if it did.
    calls: set[Any]


def operation_rows(
    events: Sequence[Event], seen: Callable[[Event], Operation]
) -> list[tuple[Row, list[Event]]]:
    """What functions of the user's compile outside of jit, and what is spared.

    `events`: all of the run.
    """
    # The lines on the way to what is jitted, also by a library. Nothing around them is
    # to be jitted: that would be compiled for each shape of the rest.
    jitting = {x for e in events if not is_operation(e) for x in e.frames}
    not_own = {x[::2] for x in jitting}
    paths: dict[Any, list[Event]] = collections.defaultdict(list)
    for e in events:
        if is_operation(e) and e.frames and not seen(e).is_making:
            paths[e.frames, e.function.name].append(e)
    functions: dict[Any, dict[Any, _Repeated]] = {}
    for (frames, name), found in paths.items():
        calls = [seen(e).calls for e in found]
        inside = [*itertools.takewhile(lambda x: x[::2] not in not_own, frames)]
        named = (i for i, x in enumerate(inside) if not x.function.endswith(">"))
        own = max(named, default=None)
        level = _repeated(frames, calls)
        if level is not None:
            line = frames[level]
            # A loop in a function is nearer than what calls that.
            own = own if own is None else min(level, own)
        elif own is not None:  # the line that calls it
            line = frames[min(own + 1, len(frames) - 1)]
        else:
            line = frames[0]
        function = line if own is None else frames[own]
        lines = functions.setdefault((function[::2], own is not None), {})
        repeated = lines.setdefault(
            (line, frames[0], name), _Repeated(line, list[Event](), set[Any]())
        )
        repeated.events.extend(found)
        if level is not None:
            repeated.calls.update(x[level] for x in calls if x)
    rows: list[tuple[Row, list[Event]]] = []
    for ((_, function), is_own), lines in functions.items():
        counts = collections.Counter(x.line for x in lines.values() for _ in x.events)
        many = {x for x, n in counts.items() if n >= _MANY} - jitting
        if is_own and counts.total() >= _MANY:
            many = {*counts}
        chosen = [x for x in lines.values() if x.line in many or len(x.calls) >= _LEAST]
        if chosen:
            rows.append(_row(function, chosen, bool(many), seen))
    return rows


def needed_rows(events: Sequence[Event]) -> list[Row]:
    """A row with the price of operations that no edit spares, if there are any."""
    if not events:
        return []
    names = listed((e.function.name for e in events), 3)
    seconds = sum(e.seconds for e in events)
    row = Row(
        "operations outside of jit",
        (part_of("other-program", {"differs": names}),),
        costliest((line_of(e), e.seconds) for e in events),
        seconds=seconds,
        wanted=seconds,
        compilations=len(events),
        programs=len({*map(program_key, events)}),
    )
    return [row]


def _repeated(
    frames: Sequence[Place], calls: Sequence[tuple[tuple[Any, Any], ...]]
) -> int | None:
    """Which of the user's functions repeats what it calls.

    That is the innermost of which one call has made several: with the loop around a
    function of the user's, rather than the lines in it. A model is as one of them.
    """
    for i, frame in enumerate(frames):
        own = {x[i] for x in calls if i < len(x)}
        is_repeated = len(own) > len({function for function, _ in own})
        if is_repeated and not frame.function.endswith(".__call__"):
            return i
    return None


def _row(
    function: str,
    found: list[_Repeated],
    is_whole: bool,
    seen: Callable[[Event], Operation],
) -> tuple[Row, list[Event]]:
    """The row of a function. Of each operation, the first is needed.

    `is_whole`: all of its operations could be one program instead.
    """
    found.sort(key=lambda x: -sum(e.seconds for e in x.events[1:]))
    main = found[0].events
    again = [e for x in found if len(x.calls) >= _LEAST for e in x.events[1:]]
    different = {*map(program_key, main)}
    # Of a few operations that take turns, each is compiled once.
    is_same = len(different) <= len(main) // 2 and any(seen(e).is_loop for e in main)
    values = tuple(dict.fromkeys(seen(e).operands for e in main))
    if len(values) <= len(main) // 2:  # of `jnp.arange`, say
        values = tuple(dict.fromkeys(seen(e).results for e in main))
    every = [e for x in found for e in x.events]
    saves = sum(e.seconds for e in again)
    if is_whole:
        rest = [e.seconds for e in {*every} - {*again}]
        saves += sum(rest) - max(max(rest), sum(rest) * _LEFT)
    is_other = bool(again) and not is_same
    shown = [shortened(x, 40) for x in values[:2]]
    facts = {
        "operations": listed((x.events[0].function.name for x in found), 2),
        "values": f": {', '.join([*shown, '...'])}" if is_other else "",
        "shape": "one shape, and " if is_other else "",
    }
    rule = "eager-function" if is_same else "eager"
    fields: Any = {"values": values, "count": len(again), "other_data": is_other}
    part = part_of(rule, facts, saves=saves, gain=saves, **fields)
    row = Row(
        function.rpartition("<locals>.")[2],
        (part,),
        costliest((x.line, e.seconds) for x in found for e in x.events),
        seconds=sum(e.seconds for e in every),
        saves=saves,
        other_data=saves if is_other else 0.0,
        about=is_whole,
        compilations=len(every),
        programs=len({*map(program_key, every)}),
    )
    return row, every if is_whole else again
