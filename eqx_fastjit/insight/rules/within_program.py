"""Rows of what is within programs, and of what each run compiles anew.

These are about compilations that no other edit spares.
"""

import collections
import statistics
from collections.abc import Iterator
from typing import Any

from eqx_fastjit._facts import Place
from eqx_fastjit.insight._words import listed, show_seconds
from eqx_fastjit.insight.record._events import Event
from eqx_fastjit.insight.record._file import Run
from eqx_fastjit.insight.record._look import Look
from eqx_fastjit.insight.record._loops import UnrolledLoop
from eqx_fastjit.insight.record._private import keeps_callbacks
from eqx_fastjit.insight.record._why import line_of, name_of, stages_of

from ._rules import Part, part_of, Row


# What a `scan` takes, in iterations. XLA compiles iterations that are alike faster than
# the first one.
_SCANNED = 4
# Seconds to read a compiled program from JAX's persistent cache.
_READING = 4e-3
# XLA's part over that of tracing, where a run has nothing to compare with.
_USUAL = 10.0


def look_at(run: Run, event: Event) -> Look:
    """What was to be seen in the program of an event."""
    return run.looks.get(event.number, Look())


def _row(
    parts: tuple[Part, ...],
    line: Place | None,
    spared: dict[Event, float],
    left: dict[Event, float],
) -> Row:
    """A row of what is spared of compilations, which is taken from what is `left`."""
    for event, seconds in spared.items():
        left[event] -= seconds
    return Row(
        name_of(max(spared, key=lambda e: e.seconds).function),
        parts,
        line,
        seconds=sum(e.seconds for e in spared),
        saves=sum(spared.values()),
        about=True,
        compilations=len(spared),
    )


# --- unrolled loops -------------------------------------------------------------------


def loop_rows(run: Run, left: dict[Event, float]) -> Iterator[Row]:
    """The unrolled loops, each once. What they save is taken from what is `left`."""
    by_place: dict[Place, dict[Event, UnrolledLoop]] = collections.defaultdict(dict)
    for event in left:
        for loop in look_at(run, event).loops:
            by_place[loop.place][event] = loop
    for place, loops in by_place.items():
        shares = {e: x.equations / look_at(run, e).equations for e, x in loops.items()}
        beyond = {e: max(0.0, 1 - _SCANNED / x.iterations) for e, x in loops.items()}
        spared = {e: min(left[e], e.seconds * shares[e] * beyond[e]) for e in loops}
        longest, saved = max(loops, key=lambda e: e.seconds), sum(spared.values())
        facts = {
            "iterations": loops[longest].iterations,
            "share": f"{shares[longest]:.0%}",
            "function": name_of(longest.function),
        }
        fields: Any = {"count": len(loops), "saves": saved, "gain": saved}
        part = part_of("unrolled-loop", facts, line=place, **fields)
        yield _row((part,), place, spared, left)


# --- captured constants ---------------------------------------------------------------


def constant_rows(run: Run, left: dict[Event, float]) -> Iterator[Row]:
    """The captured constants that make a function compile for long."""
    by_function: dict[Any, list[Event]] = collections.defaultdict(list)
    for event in left:
        if look_at(run, event).constants:
            by_function[event.function.key()].append(event)
    for events in by_function.values():
        spared = {e: min(left[e], _by_constants(run, e)) for e in events}
        event = max(events, key=lambda e: spared[e])
        parts: list[Part] = []
        for x in look_at(run, event).constants:
            text = f"{x.name}, {x.type}" if x.name else x.type
            facts = {"path": text, "function": name_of(event.function)}
            part = part_of("captured-constant", facts, line=x.place, path=x.name)
            parts.append(part)
        yield _row(tuple(parts), line_of(event), spared, left)


def _by_constants(run: Run, event: Event) -> float:
    """About what constants add to a compilation.

    That is what XLA takes beyond its usual share in this run, and at most what holding
    and folding them may take. Lowering takes longer with constants, tracing does not.
    """
    shares = [
        e.compile / tracing
        for e in run.events
        if (tracing := stages_of(e)["trace"]) and e.compile and not e.cached
        if not look_at(run, e).constants
    ]
    usual = statistics.median(shares or [_USUAL]) * stages_of(event)["trace"]
    return max(0.0, min(event.compile - usual, look_at(run, event).most_by_constants))


# --- each run -------------------------------------------------------------------------


def cache_rows(run: Run, left: dict[Event, float]) -> Iterator[Row]:
    """What JAX's persistent cache would save in later runs, and what it refuses."""
    keeps = keeps_callbacks()
    compiled = [e for e in run.events if e.compile and not (e.cached or e.failed)]
    kept = [e for e in compiled if keeps or not look_at(run, e).calls_back]
    # What calls back for Equinox's checks alone: `EQX_ON_ERROR` turns these off.
    checks = [e for e in compiled if look_at(run, e).only_checks and not keeps]
    is_set = run.cache is not None or any(e.cached for e in run.events)
    # Of the program as it is, with what other rows save.
    whole = sum(max(0.0, e.compile - _READING) for e in kept)
    rules = {"run-cache": [] if is_set else kept, "callbacks-not-kept": checks}
    for rule, events in rules.items():
        remaining = [e for e in events if e in left]
        seconds = sum(min(left[e], e.compile) for e in remaining)
        saved = max(0.0, seconds - _READING * len(remaining))
        more = f" ({show_seconds(whole)} without edits)" if whole > 1.2 * saved else ""
        names = listed((name_of(e.function) for e in remaining), 3)
        facts = {"function": names, "more": more}
        part = part_of(rule, facts, saves=saved, gain=saved)
        name = "the program" if rule == "run-cache" else names
        yield Row(name, (part,), seconds=seconds, saves=saved, later=saved)
