"""Operations outside of jit: each is a program of its own.

Most are compiled once, as a program starts. What a line compiles again and again is
waste: its operands have other shapes each time, or a function that it is given is made
anew.
"""

import collections
import itertools
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from eqx_fastjit._blocking import opened
from eqx_fastjit._facts import is_written_by_user, Place

from ._equations import CONTROL_FLOW, JAX
from ._events import Event
from ._programs import show_aval
from ._rules import part_of, Row
from ._why import costliest
from ._words import listed, shortened


# How often an operation is compiled at a line that is no accident: models may have
# layers of a few widths.
_LEAST = 5
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


def operation_rows(
    events: Iterable[Event], seen: Callable[[Event], Operation]
) -> list[tuple[Row, list[Event]]]:
    """What functions of the user's compile again and again, and what is spared."""
    paths: dict[Any, list[Event]] = collections.defaultdict(list)
    for event in events:
        if event.frames and not seen(event).is_making:
            paths[event.frames, event.function.name].append(event)
    lines: dict[Any, list[Event]] = collections.defaultdict(list)
    calls: dict[Any, set[Any]] = collections.defaultdict(set)
    for (frames, name), found in paths.items():
        level = _repeated(frames, [seen(e).calls for e in found])
        key = frames[level], frames[0], name
        lines[key] += found
        calls[key].update(seen(e).calls[level:][:1] for e in found)
    functions: dict[Any, list[tuple[Place, list[Event]]]] = {}
    for key, found in lines.items():
        place = key[0]
        if len(calls[key]) >= _LEAST:
            own = functions.setdefault((place.file, place.function), [])
            own.append((place, found))
    return [_row(found, seen) for found in functions.values()]


def _repeated(frames: Sequence[Place], calls: Sequence[tuple[Any, ...]]) -> int:
    """Which of the user's functions repeats what it calls; else the innermost.

    That is the innermost of which one call has made several: with the loop around a
    function of the user's, rather than the lines in it. A model is as one of them.
    """
    levels = [i for i, x in enumerate(frames) if not x.function.endswith(".__call__")]
    for i in levels:
        own = {x[i] for x in calls if i < len(x)}
        if len(own) > len({function for function, _ in own}):
            return i
    return next(iter(levels), 0)


def _row(
    found: list[tuple[Place, list[Event]]], seen: Callable[[Event], Operation]
) -> tuple[Row, list[Event]]:
    """The row of a function, by its lines. Of each operation, the first is needed."""
    found.sort(key=lambda x: -sum(e.seconds for e in x[1][1:]))
    again = [e for _, x in found for e in x[1:]]
    line = costliest((place, e.seconds) for place, x in found for e in x)
    main = found[0][1]
    different = {*map(program_key, main)}
    # Of a few operations that take turns, each is compiled once.
    is_same = len(different) <= len(main) // 2 and any(seen(e).is_loop for e in main)
    values = tuple(dict.fromkeys(seen(e).operands for e in main))
    if len(values) <= len(main) // 2:  # of `jnp.arange`, say
        values = tuple(dict.fromkeys(seen(e).results for e in main))
    saves = sum(e.seconds for e in again)
    facts = {
        "operations": listed((x[0].function.name for _, x in found), 2),
        "values": ", ".join([*(shortened(x, 40) for x in values[:2]), "..."]),
    }
    rule = "eager-function" if is_same else "eager"
    fields: Any = {"values": values, "count": len(again), "other_data": not is_same}
    part = part_of(rule, facts, saves=saves, gain=saves, **fields)
    row = Row(
        found[0][0].function.rpartition("<locals>.")[2],
        (part,),
        line,
        seconds=sum(e.seconds for _, x in found for e in x),
        saves=saves,
        other_data=0.0 if is_same else saves,
        compilations=sum(len(x) for _, x in found),
        programs=len({program_key(e) for _, x in found for e in x}),
    )
    return row, again
