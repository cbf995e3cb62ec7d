"""Rows of what is within programs, and of what each run compiles anew.

These are about compilations that no other edit spares.
"""

import collections
import statistics
from collections.abc import Iterator
from typing import Any

from eqx_fastjit._facts import Place

from ._events import Event
from ._file import Run
from ._look import Look
from ._loops import UnrolledLoop
from ._private import keeps_callbacks
from ._rules import Part, part_of, Row
from ._why import line_of, name_of, stages_of
from ._words import listed, show_seconds


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


# --- unrolled loops -------------------------------------------------------------------


def loop_rows(run: Run, left: dict[Event, float]) -> Iterator[Row]:
    """The unrolled loops, each once. What they save is taken from what is `left`."""
    by_place: dict[Place, dict[Event, UnrolledLoop]] = {}
    for event in left:
        for loop in look_at(run, event).loops:
            by_place.setdefault(loop.place, {})[event] = loop
    for place, loops in by_place.items():
        shares = {
            e: x.equations / max(1, look_at(run, e).equations) for e, x in loops.items()
        }
        saved = 0.0
        for event, loop in loops.items():
            beyond = max(0.0, 1 - _SCANNED / loop.iterations)
            spared = min(left[event], event.seconds * shares[event] * beyond)
            left[event] -= spared
            saved += spared
        longest = max(loops, key=lambda e: e.seconds)
        name = name_of(longest.function)
        facts = {
            "iterations": loops[longest].iterations,
            "share": f"{shares[longest]:.0%}",
            "function": name,
        }
        fields: Any = {"count": len(loops), "saves": saved, "gain": saved}
        yield Row(
            name,
            (part_of("unrolled-loop", facts, line=place, **fields),),
            place,
            seconds=sum(e.seconds for e in loops),
            saves=saved,
            about=True,
            compilations=len(loops),
        )


# --- captured constants ---------------------------------------------------------------


def constant_rows(run: Run, left: dict[Event, float]) -> Iterator[Row]:
    """The captured constants that make a function compile for long."""
    by_function: dict[Any, list[Event]] = {}
    for event in left:
        if look_at(run, event).constants:
            by_function.setdefault(event.function.key(), []).append(event)
    for events in by_function.values():
        saved = {e: min(left[e], _by_constants(run, e)) for e in events}
        for event, seconds in saved.items():
            left[event] -= seconds
        event = max(events, key=lambda e: saved[e])
        constants = sorted(look_at(run, event).constants, key=lambda x: -x.seconds)
        name = name_of(event.function)
        parts: list[Part] = []
        for x in constants[:3]:
            text = f"{x.name}, {x.type}" if x.name else x.type
            facts = {"path": text, "function": name}
            part = part_of("captured-constant", facts, line=x.place, path=x.name)
            parts.append(part)
        yield Row(
            name,
            tuple(parts),
            line_of(event),
            seconds=sum(e.seconds for e in events),
            saves=sum(saved.values()),
            about=True,
            compilations=len(events),
        )


def _by_constants(run: Run, event: Event) -> float:
    """About what constants add to a compilation.

    That is what XLA takes beyond its usual share in this run, and at most what holding
    and folding them may take. Lowering takes longer with constants, tracing does not.
    """
    tracing = {e: stages_of(e)["trace"] for e in run.events}
    shares = [
        e.compile / tracing[e]
        for e in run.events
        if e.compile and tracing[e] and not (e.cached or look_at(run, e).constants)
    ]
    usual = (statistics.median(shares) if shares else _USUAL) * tracing[event]
    most = sum(x.seconds for x in look_at(run, event).constants)
    return max(0.0, min(event.compile - usual, most))


# --- each run -------------------------------------------------------------------------


def cache_rows(run: Run, left: dict[Event, float]) -> Iterator[Row]:
    """What JAX's persistent cache would save in later runs, and what it refuses."""
    keeps = keeps_callbacks()

    def is_kept(event: Event) -> bool:
        return keeps or not look_at(run, event).calls_back

    compiled = [e for e in run.events if e.compile and not (e.cached or e.failed)]
    # Of the program as it is, with what other rows save.
    whole = sum(max(0.0, e.compile - _READING) for e in compiled if is_kept(e))
    remaining = [e for e in compiled if e in left]
    kept = [e for e in remaining if is_kept(e)]
    refused = [
        e for e in remaining if not is_kept(e) and not look_at(run, e).has_own_callbacks
    ]
    is_set = run.cache is not None or any(e.cached for e in run.events)
    anew = [] if is_set else kept
    for rule, events in (("run-cache", anew), ("callbacks-not-kept", refused)):
        seconds = sum(min(left[e], e.compile) for e in events)
        saved = max(0.0, seconds - _READING * len(events))
        names = collections.Counter(name_of(e.function) for e in events)
        is_more = whole > 1.2 * saved
        more = f" ({show_seconds(whole)} without edits)" if is_more else ""
        facts = {"function": listed(names, 3), "more": more}
        part = part_of(rule, facts, saves=saved, gain=saved)
        name = "the program" if rule == "run-cache" else facts["function"]
        yield Row(name, (part,), seconds=seconds, saves=saved, later=saved)
