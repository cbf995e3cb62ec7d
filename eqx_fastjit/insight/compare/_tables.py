"""From events to tables: the compilations of each function of a run."""

from collections.abc import Iterable, Iterator, Mapping

from eqx_fastjit.insight.record._events import Event
from eqx_fastjit.insight.record._why import is_operation

from ._table import Compiled, Table


def shared(event: Event) -> object:
    """The same for events of which the first could have spared the others."""
    # Two lines that jit a class, say, are two functions. JAX shares nothing that is
    # compiled between stages and calls.
    line = event.frames[:1] if event.function.place is None else ()
    return event.function.key(), line, event.ahead


def tables_of(events: Iterable[Event], before: Iterable[Event] = ()) -> list[Table]:
    """The compilations of each function.

    **Arguments:**

    - `events`: of a run; operations outside of jit are left out, and what failed.
    - `before`: earlier ones of the process, which may have spared some of these.
    """
    earlier = {e.number for e in before}
    by_number = {e.number: e for e in (*before, *events)}

    # The compilations of each function, each with what is a part of it.
    functions: dict[object, dict[int, list[Event]]] = {}
    cells: dict[int, int] = {}  # in which cell of a notebook a function was first seen
    for number in sorted(by_number):
        event = by_number[number]
        outermost = outermost_of(event, by_number)
        if not (outermost.failed or is_operation(outermost)):
            cell = cells.setdefault(outermost.function.number, outermost.cell)
            is_part = outermost.is_part and not outermost.ahead
            own = functions.setdefault((shared(outermost), cell, is_part), {})
            own.setdefault(outermost.number, []).append(event)

    out: list[Table] = []
    for compilations in functions.values():
        rows: list[Compiled] = []
        for inside in _with_stages(compilations.values()):
            event = next((e for e in inside if not e.is_part), None)
            if event is not None:
                rows.append(compilation_of(event, inside, event.number in earlier))

        # Of a call whose arguments are gone nothing can be said; but if each row is of
        # another function, that alone says why.
        numbers = {x.event.function.number for x in rows}
        known = [x for x in rows if x.event.signature]
        if known or len(numbers) < len(rows):
            rows = known
        if any(not x.is_before for x in rows):
            out.append(Table(rows[0].event.function.name, rows))
    return out


def compilation_of(
    event: Event, inside: Iterable[Event], is_before: bool = False
) -> Compiled:
    """A row: an event, with all that are a part of it."""
    return Compiled(
        event,
        {leaf.path: leaf for leaf in event.signature},
        next((e.program for e in inside if e.program), None),
        0.0 if is_before else sum(e.seconds for e in inside),
        is_before,
    )


def outermost_of(event: Event, by_number: Mapping[int, Event]) -> Event:
    """What a function was traced for, if it is a part of another one."""
    while event.is_part and (around := by_number.get(event.inside or 0)) is not None:
        event = around
    return event


def _with_stages(compilations: Iterable[list[Event]]) -> Iterator[list[Event]]:
    """With stages ahead of time as parts of the one that compiles."""
    waiting: list[list[Event]] = []
    for events in compilations:
        first = events[0]
        if first.ahead and first.is_part:
            waiting.append(events)
            continue
        for stage in [x for x in waiting if x[0].signature == first.signature]:
            waiting.remove(stage)
            events = [*stage, *events]
        yield events
