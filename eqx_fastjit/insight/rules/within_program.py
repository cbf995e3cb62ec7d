"""Within a program: rules of unrolled loops, and of captured constants.

These are about compilations that no other edit spares.
"""

import collections
import statistics
from collections.abc import Iterator
from typing import Any

from eqx_fastjit._facts import Place
from eqx_fastjit.insight.record._events import Event
from eqx_fastjit.insight.record._loops import UnrolledLoop
from eqx_fastjit.insight.record._run import Run
from eqx_fastjit.insight.record._why import line_of, name_of, stages_of

from ._rules import Case, Part, Row, Rule


# What a `scan` takes, in iterations. XLA compiles iterations that are alike faster than
# the first one. And from how many it is told: over a few layers, each call of a `scan`
# takes longer than without, which is soon more than it spares.
_SCANNED, _LEAST_ITERATIONS = 4, 8
# XLA's part over that of tracing, where a run has nothing to compare with.
_USUAL = 10.0

LOOP = Rule(
    "unrolled-loop",
    "jax.lax.scan; jax.vmap (eqx.filter_vmap of modules) if they are independent",
    "a loop, {iterations} iterations in all, {share} of {function}",
)
CONSTANT = Rule(
    "captured-constant", "pass it as an argument", "{path}, a constant of {function}"
)

RULES = (LOOP, CONSTANT)


def rows(case: Case) -> Iterator[Row]:
    """The unrolled loops, each once, and functions with large constants."""
    yield from _loop_rows(case)
    yield from _constant_rows(case)


def _loop_rows(case: Case) -> Iterator[Row]:
    run, left = case.run, case.left
    by_place: dict[Place, dict[Event, UnrolledLoop]] = collections.defaultdict(dict)
    for event in left:
        for loop in run.look(event).loops:
            if loop.iterations >= _LEAST_ITERATIONS:
                by_place[loop.place][event] = loop

    for place, loops in by_place.items():
        shares = {e: x.equations / run.look(e).equations for e, x in loops.items()}
        beyond = {e: max(0.0, 1 - _SCANNED / x.iterations) for e, x in loops.items()}
        spared = {e: min(left[e], e.seconds * shares[e] * beyond[e]) for e in loops}
        longest, saved = max(loops, key=lambda e: e.seconds), sum(spared.values())
        facts = {
            "iterations": loops[longest].iterations,
            "share": f"{shares[longest]:.0%}",
            "function": name_of(longest.function),
        }
        part = LOOP.part(facts, line=place, count=len(loops), saves=saved)
        yield _row(case, (part,), place, spared)


def _constant_rows(case: Case) -> Iterator[Row]:
    run, left = case.run, case.left
    by_function: dict[Any, list[Event]] = collections.defaultdict(list)
    for event in left:
        if run.look(event).constants:
            by_function[event.function.key()].append(event)

    for events in by_function.values():
        spared = {e: min(left[e], _by_constants(run, e)) for e in events}
        event = max(events, key=lambda e: spared[e])
        parts: list[Part] = []
        for x in run.look(event).constants:
            text = f"{x.name}, {x.type}" if x.name else x.type
            facts = {"path": text, "function": name_of(event.function)}
            parts.append(CONSTANT.part(facts, line=x.place, path=x.name))
        yield _row(case, tuple(parts), line_of(event), spared)


def _by_constants(run: Run, event: Event) -> float:
    """About what constants add to a compilation.

    That is what XLA takes beyond its usual share in this run, and at most what holding
    and folding them may take. Lowering takes longer with constants, tracing does not.
    """
    shares = [
        e.compile / tracing
        for e in run.events
        if (tracing := stages_of(e)["trace"]) and e.compile and not e.cached
        if not run.look(e).constants
    ]
    usual = statistics.median(shares or [_USUAL]) * stages_of(event)["trace"]
    return max(0.0, min(event.compile - usual, run.look(event).most_by_constants))


def _row(
    case: Case, parts: tuple[Part, ...], line: Place | None, spared: dict[Event, float]
) -> Row:
    """A row of what is spared of compilations, which is taken from what is left."""
    for event, seconds in spared.items():
        case.left[event] -= seconds
    return Row(
        name_of(max(spared, key=lambda e: e.seconds).function),
        parts,
        line,
        seconds=sum(e.seconds for e in spared),
        saves=sum(spared.values()),
        about=True,
        compilations=len(spared),
    )
