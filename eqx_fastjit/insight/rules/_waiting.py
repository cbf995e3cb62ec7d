"""The rules of waits: what Python waits for in each step, without need."""

import dataclasses
from collections.abc import Iterable, Iterator

from eqx_fastjit._facts import is_users
from eqx_fastjit.insight._words import show_seconds
from eqx_fastjit.insight.record._calls import Timed
from eqx_fastjit.insight.record._run import Run
from eqx_fastjit.insight.record._statements import statement_at
from eqx_fastjit.insight.record._waits import JITTED_CALL, Wait
from eqx_fastjit.insight.record._why import short_name

from ._rules import Part, Row, Rule


WAITS = Rule("waits", "read every 100 steps, or after the loop", "{path} {cost}")
BLOCKING = Rule("blocking-call", "{edit}", "calls that block {cost}")

# The share of all waits below which those of one line are not told.
_LITTLE = 0.01


def rows_of_waits(run: Run, spared: float) -> Iterator[Row]:
    """What the program waits for without need, if it could save any seconds.

    A number that is read in each step may be read later. What is an index, a flag or a
    whole array may decide what comes next: then nothing is saved by not waiting.

    `spared`: seconds of Python between the waits that other rows save.
    """
    if run.busy:  # of others' work, waits are not known
        return

    waits, saves = run.waits, run.ahead - spared
    found = [x for x in waits if x.count and not x.decides]
    seconds = sum(x.seconds for x in found)
    found = [x for x in found if x.seconds > _LITTLE * seconds]
    if not found or saves <= 0:
        return

    first = found[0]  # which takes longest
    function = first.place.function
    beside = (x for x in waits if x.decides and x.place.function == function)
    if any(2 * x.reads > first.reads for x in beside):
        return

    # What is read as often in the same loop would wait in its place, and what is read
    # after that loop would not.
    loop = statement_at(first.place).loop
    often = (x for x in waits if 2 * x.reads > first.reads and x is not first)
    here = (x for x in often if x.place.function == function)
    mended = [first, *(x for x in here if statement_at(x.place).loop == loop)]
    if first.what != JITTED_CALL:
        reads = (x for x in found if x.what != JITTED_CALL)
        mended += [x for x in reads if x not in mended]

    main, *others = (_part_of_wait(x, run) for x in mended)
    parts = (
        dataclasses.replace(main, saves=saves, gain=saves),
        *(dataclasses.replace(x, gain=None) for x in others),
    )
    name = short_name(function)
    yield Row(name, parts, first.place, seconds=seconds, saves=saves, about=True)


def _part_of_wait(wait: Wait, run: Run) -> Part:
    edit = "asynchronous=True"
    if any(x.is_of_equinox for x in run.timed):
        edit = replacing(run.timed, "eqx_fastjit.install(asynchronous=True)")
    facts = {"path": wait.what, "cost": _cost_of(wait), "edit": edit}
    rule = BLOCKING if wait.what == JITTED_CALL else WAITS
    return rule.part(facts, path=wait.what, count=wait.count, line=wait.place)


def _cost_of(wait: Wait) -> str:
    """How often it waited, and for how long each time."""
    if not wait.count:
        return f"{wait.reads} x"
    return f"{wait.count} x {show_seconds(wait.seconds / wait.count)}"


def replacing(timed: Iterable[Timed], install: str) -> str:
    """What replaces Equinox's `filter_jit`: an import, where only the user calls it.

    For a function of a library's, the library may call it, which no import reaches.
    """
    places = (x.function.place for x in timed if x.is_of_equinox)
    if all(is_users(x.file) for x in places if x):
        return "from eqx_fastjit import filter_jit"
    return f"{install} before anything else is imported"
