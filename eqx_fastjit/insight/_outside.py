"""Operations outside of jit: each is a program of its own.

Most are compiled once, as a program starts. What a line compiles again and again is
waste: its operands have other shapes each time, or a function that it is given is made
anew.
"""

import collections
import itertools
import sys
import traceback
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any, NamedTuple

from eqx_fastjit._blocking import opened
from eqx_fastjit._facts import is_written_by_user, Place

from ._equations import CONTROL_FLOW, JAX
from ._events import Event
from ._programs import show_aval
from ._rules import part_of, Row
from ._why import line_of
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
    # The same object for all operations of one call that the user's line makes. In
    # one, a library may load the arrays of a model, say.
    call: Any = None


def operation(jaxpr: Any) -> Operation:
    """The operation that is being compiled in this thread."""
    stack = [*traceback.walk_stack(sys._getframe(1))]
    is_making = any(_is_maker(frame.f_code) for frame, _ in stack)
    inner = opened(jaxpr)
    if inner is None:
        return Operation(is_making=is_making)
    frames = (frame for frame, _ in stack)
    called = [*itertools.takewhile(lambda x: not is_written_by_user(x.f_code), frames)]
    operands, results = ([*map(show_aval, x)] for x in (inner.invars, inner.outvars))
    return Operation(
        _listed(operands),
        _listed(results),
        any(e.primitive.name in CONTROL_FLOW for e in inner.eqns[:_MAX_EQUATIONS]),
        is_making,
        _marked(called[-1]),
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
    lines: dict[Any, list[Event]] = collections.defaultdict(list)
    for event in events:
        place = _caller(event)
        if place is not None and not seen(event).is_making:
            lines[place, event.function.name].append(event)
    functions: dict[Any, list[list[Event]]] = collections.defaultdict(list)
    for (place, _), found in lines.items():
        if len({seen(e).call for e in found}) >= _LEAST:
            functions[place.file, place.function].append(found)
    out: list[tuple[Row, list[Event]]] = []
    for (_, function), found in functions.items():
        # Of each, the first is needed.
        found.sort(key=lambda x: -sum(e.seconds for e in x[1:]))
        again = [e for x in found for e in x[1:]]
        out.append((_row(function, found, again, seen), again))
    return out


def _caller(event: Event) -> Place | None:
    """The user's line, or that which calls a model of the user's."""
    frames = (x for x in event.frames if not x.function.endswith(".__call__"))
    return next(frames, line_of(event))


def _row(
    function: str,
    found: list[list[Event]],
    again: list[Event],
    seen: Callable[[Event], Operation],
) -> Row:
    main = found[0]
    different = {*map(program_key, main)}
    # Of a few operations that take turns, each is compiled once.
    is_same = len(different) <= len(main) // 2 and any(seen(e).is_loop for e in main)
    values = tuple(dict.fromkeys(seen(e).operands for e in main))
    if len(values) <= len(main) // 2:  # of `jnp.arange`, say
        values = tuple(dict.fromkeys(seen(e).results for e in main))
    saves = sum(e.seconds for e in again)
    facts = {
        "operations": listed((x[0].function.name for x in found), 2),
        "values": ", ".join([*(shortened(x, 40) for x in values[:2]), "..."]),
    }
    rule = "eager-function" if is_same else "eager"
    fields: Any = {"values": values, "count": len(again), "other_data": not is_same}
    part = part_of(rule, facts, saves=saves, gain=saves, **fields)
    return Row(
        function.rpartition("<locals>.")[2],
        (part,),
        _caller(main[0]),
        seconds=sum(e.seconds for x in found for e in x),
        saves=saves,
        other_data=0.0 if is_same else saves,
        compilations=sum(map(len, found)),
        programs=len({program_key(e) for x in found for e in x}),
    )
