"""Operations outside of jit: each is a program of its own.

A few are compiled once, as a program starts. What a line compiles again and again is
waste: its operands have other shapes each time, or a function that it is given is made
anew. So is what a line compiles, or a function that calls nothing jitted, if that is
much: it could be one program.
"""

import collections
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from eqx_fastjit._facts import Place
from eqx_fastjit.insight._words import listed, shortened
from eqx_fastjit.insight.record._events import Event
from eqx_fastjit.insight.record._run import Run
from eqx_fastjit.insight.record._why import costliest, is_operation, line_of

from ._rules import Case, Row, Rule
from .same_operations import NEEDED


# How often an operation is compiled at a line that is no accident: models may have
# layers of a few widths.
_LEAST = 5
# From how many operations on a line, or a function that jits nothing, has a row; and
# about which part of their seconds one program takes in their place.
_MANY, _LEFT = 20, 0.25


def program_key(event: Event) -> tuple[str, str]:
    """The same for operations of one program, which JAX had."""
    program = event.program
    return event.function.name, program.same if program else f"{event.number}"


EAGER = Rule(
    "eager",
    "{shape}filter_jit around what it computes; of a loop, around the body",
    "{operations} outside of jit{values}",
)
AGAIN = Rule(
    "eager-function",
    "make it once, under filter_jit",
    "{operations} outside of jit, of a function made again",
)

RULES = (EAGER, AGAIN)


class _Compiled(NamedTuple):
    """Compilations of one operation, at one line of what a function calls."""

    # That of the function's call, or of the operation where no function is named.
    line: Place
    events: list[Event]
    # Whether the line compiled it again and again, for data in several shapes.
    is_again: bool


def rows(case: Case) -> Iterator[Row]:
    """What functions of the user's compile outside of jit, then what has to be."""
    for row, spared in _operation_rows(case.run.events, case.run):
        case.spare(row, spared)
        yield row
    yield from _needed_rows([e for e in case.left if is_operation(e)])


def _operation_rows(events: Sequence[Event], run: Run) -> list[tuple[Row, list[Event]]]:
    # The lines on the way to what is jitted, also by a library. Nothing around them is
    # to be jitted: that would be compiled for each shape of the rest.
    jitting = {x for e in events if not is_operation(e) for x in e.frames}
    not_own = {x[::2] for x in jitting}
    functions: dict[Any, dict[Any, list[Event]]] = {}
    for e in events:
        if not (is_operation(e) and e.frames) or run.look(e).operation.is_making:
            continue
        inside = itertools.takewhile(lambda x: x[::2] not in not_own, e.frames)
        named = [i for i, x in enumerate(inside) if not x.function.endswith(">")]
        # The outermost function that jits nothing, and the line that calls it.
        own = e.frames[named[-1]] if named else e.frames[0]
        line = e.frames[: named[-1] + 2][-1] if named else own
        lines = functions.setdefault((own[::2], bool(named)), {})
        key = line, e.frames[0], run.look(e).operation.instruction, e.function.name
        lines.setdefault(key, []).append(e)
    rows: list[tuple[Row, list[Event]]] = []
    for ((_, function), is_own), lines in functions.items():
        found = [
            _Compiled(
                line, x, len({run.look(e).operation.call for e in x} - {None}) >= _LEAST
            )
            for (line, *_), x in lines.items()
        ]
        counts = collections.Counter(x.line for x in found for _ in x.events)
        many = {x for x, n in counts.items() if n >= _MANY} - jitting
        if is_own and counts.total() >= _MANY:
            many = {*counts}
        chosen = [x for x in found if x.line in many or x.is_again]
        if chosen:
            rows.append(_row(function, chosen, bool(many), run))
    return rows


def _needed_rows(events: Sequence[Event]) -> list[Row]:
    """A row with the price of operations that no edit spares, if there are any."""
    if not events:
        return []
    names = listed((e.function.name for e in events), 3)
    seconds = sum(e.seconds for e in events)
    row = Row(
        "operations outside of jit",
        (NEEDED.part({"differs": names}),),
        costliest((line_of(e), e.seconds) for e in events),
        seconds=seconds,
        wanted=seconds,
        compilations=len(events),
        programs=len({*map(program_key, events)}),
    )
    return [row]


def _row(
    function: str,
    found: list[_Compiled],
    is_whole: bool,
    run: Run,
) -> tuple[Row, list[Event]]:
    """The row of a function. Of each operation, the first is needed.

    `is_whole`: all of its operations could be one program instead.
    """
    found.sort(key=lambda x: -sum(e.seconds for e in x.events[1:]))
    main = found[0].events
    again = [e for x in found if x.is_again for e in x.events[1:]]
    different = {*map(program_key, main)}
    # Of a few operations that take turns, each is compiled once.
    is_same = len(different) <= len(main) // 2 and any(
        run.look(e).operation.is_loop for e in main
    )
    values = tuple(dict.fromkeys(run.look(e).operation.operands for e in main))
    if len(values) <= len(main) // 2:  # of `jnp.arange`, say
        values = tuple(dict.fromkeys(run.look(e).operation.results for e in main))
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
    rule = AGAIN if is_same else EAGER
    fields: Any = {"values": values, "count": len(again), "other_data": is_other}
    part = rule.part(facts, saves=saves, gain=saves, **fields)
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
