"""Rows of what costs in each call."""

from collections.abc import Iterable

from eqx_fastjit.insight._words import show_seconds
from eqx_fastjit.insight.record._waits import JITTED_CALL, Wait

from ._rules import part_of, Row


def row_of_waits(waits: Iterable[Wait], saves: float) -> list[Row]:
    """What the program waits for without need, if it could save any seconds.

    A number that is read in each step may be read later. What is an index, a flag or a
    whole array may decide what comes next: then nothing is saved by not waiting.
    """
    found = [x for x in waits if x.count and not x.decides]
    if not found or saves <= 0:
        return []
    first = max(found, key=lambda x: x.seconds)
    function, what, n = first.place.function, first.what, first.count
    beside = (x for x in waits if x.decides and x.place.function == function)
    if any(2 * x.reads > first.reads for x in beside):
        return []
    rule = "blocking-call" if what == JITTED_CALL else "waits"
    facts = {"path": what, "cost": f"{n} x {show_seconds(first.seconds / n)}"}
    part = part_of(rule, facts, path=what, count=n, saves=saves, gain=saves)
    name = function.rpartition("<locals>.")[2]
    seconds = sum(x.seconds for x in found)
    return [Row(name, (part,), first.place, seconds=seconds, saves=saves, about=True)]
