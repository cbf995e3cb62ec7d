"""Why one event happened, beside the most similar earlier call.

The log, a guard and the list of all compilations ask here. What the compilations of a
function have in common, and what that costs, is a row (`rules/functions.py`).
"""

import collections
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from eqx_fastjit.insight.compare._table import Table
from eqx_fastjit.insight.compare._tables import compilation_of, shared
from eqx_fastjit.insight.record._events import Event
from eqx_fastjit.insight.record._why import is_operation
from eqx_fastjit.insight.rules._rules import Part
from eqx_fastjit.insight.rules.functions import row_of


# The earlier events that one is compared with.
_MAX_COMPARED = 32

# Causes that others ask for.
FIRST, CELL, OUTSIDE = "first call", "cell run again", "outside of filter_jit"
AGAIN = "the same program again"


class Reason(NamedTuple):
    """Why an event happened."""

    # In a few words.
    cause: str
    # What differs from the earlier call, each with its rule. Empty if the cause says
    # all, as of a first call, and if the arguments are gone.
    parts: tuple[Part, ...] = ()

    @property
    def texts(self) -> list[str]:
        """What differs, in words, without what to edit."""
        return [f"{x.what} [{x.rule}]" if x.edit else x.what for x in self.parts]


def reasons_of(
    events: Iterable[Event], before: Iterable[Event] = ()
) -> Iterator[tuple[Event, Reason]]:
    """Compilations in order, each with why it happened after all before it."""
    earlier: dict[object, list[Event]] = collections.defaultdict(list)
    for event in before:
        earlier[shared(event)].append(event)
    for event in events:
        alike = earlier[shared(event)]
        if event.compile:
            yield event, reason_of(event, alike)
        alike.append(event)


def reason_of(event: Event, earlier: Iterable[Event]) -> Reason:
    """Why an event happened: against earlier ones of the same program, if there are.

    `earlier` may have the event itself, and those of other functions.
    """
    if event.failed:
        return Reason("interrupted" if event.interrupted else "failed")
    if is_operation(event):
        return Reason(OUTSIDE)

    key = shared(event)
    alike = [
        old
        for old in reversed([*earlier])
        if old is not event and shared(old) == key and not old.failed
    ]
    if event.compile:  # a part of another function has spared no compilation
        alike = [x for x in alike if x.compile]

    own = [x for x in alike if x.function.number == event.function.number]
    if not own and all(x.cell != event.cell for x in alike):
        return Reason(CELL if alike else FIRST)
    same = event.program and event.program.same
    again = [x for x in alike if x.compile and x.program and x.program.same == same]
    cause = "another program" if event.program else "traced again"
    if again:
        cause = AGAIN

    known = [x for x in again or own or alike if x.signature][:_MAX_COMPARED]
    if not (known and event.signature):
        return Reason(cause)

    new = {*event.signature}
    nearest = min(known, key=lambda old: len(new ^ {*old.signature}))
    rows = [compilation_of(x, [x]) for x in (nearest, event)]
    if not all(x.program for x in rows):  # then their arguments tell them apart
        rows = [x._replace(program=None) for x in rows]
    found = row_of(Table(event.function.name, rows))
    return Reason(cause, found[0].parts if found else ())
