"""In each call: rules of what costs in every iteration of a run."""

from collections.abc import Iterator

from eqx_fastjit.insight._words import show_seconds
from eqx_fastjit.insight.record._waits import JITTED_CALL

from ._rules import Case, Row, Rule


WAITS = Rule("waits", "read every 100 steps, or after the loop", "{path} {cost}")
BLOCKING = Rule("blocking-call", "eqx-fastjit run --async", "calls that block {cost}")

RULES = (WAITS, BLOCKING)


def rows(case: Case) -> Iterator[Row]:
    """What the program waits for without need, if it could save any seconds.

    A number that is read in each step may be read later. What is an index, a flag or a
    whole array may decide what comes next: then nothing is saved by not waiting.
    """
    run = case.run
    if run.device is None or run.busy:  # of others' work, waits are not known
        return

    waits, saves = run.waits, run.device.ahead
    found = [x for x in waits if x.count and not x.decides]
    if not found or saves <= 0:
        return

    first = max(found, key=lambda x: x.seconds)
    function, what, n = first.place.function, first.what, first.count
    beside = (x for x in waits if x.decides and x.place.function == function)
    if any(2 * x.reads > first.reads for x in beside):
        return

    rule = BLOCKING if what == JITTED_CALL else WAITS
    facts = {"path": what, "cost": f"{n} x {show_seconds(first.seconds / n)}"}
    part = rule.part(facts, path=what, count=n, saves=saves, gain=saves)
    name = function.rpartition("<locals>.")[2]
    seconds = sum(x.seconds for x in found)
    yield Row(name, (part,), first.place, seconds=seconds, saves=saves, about=True)
