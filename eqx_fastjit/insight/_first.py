"""Why a first compilation took long: what nothing but an edit of the function spares.

A trace is looked through as soon as it is compiled, if that took long, and described:
nothing of it is kept.
"""

import collections
import contextlib
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax

from eqx_fastjit._engine import engine_module

from ._causes import Finding, make_finding
from ._constants import Constant, find_constants
from ._equations import read_jaxpr, trace_of
from ._events import Event
from ._file import Run
from ._loops import find_loops, UnrolledLoop
from ._operations import Operation, operation
from ._private import keeps_callbacks
from ._why import is_operation, line_of, name_of
from ._words import listed, plural, show_bytes, show_place, show_seconds


# Seconds of a compilation that make it worth to look at its equations.
LEAST_SECONDS = 0.2
# Bytes from which a constant is named, even if XLA folds nothing.
_LARGE = 1 << 20
# Seconds to read a compiled program from JAX's persistent cache.
_READING = 4e-3
# XLA's part over that of tracing and lowering, where a run has nothing to compare with.
_USUAL = 4.0


class Look(NamedTuple):
    """What is to be seen in a trace."""

    # Whether it calls back into Python.
    calls_back: bool = False
    equations: int = 0
    constants: tuple[Constant, ...] = ()
    # The largest unrolled loop that a `scan` could have.
    loop: UnrolledLoop | None = None
    # Of an operation outside of jit.
    operation: Operation = Operation()


def look(event: Event, calls_back: bool) -> Look:
    """Look at what has just been compiled."""
    out = Look(calls_back)
    # Values of the program's, with attributes of any kind, are looked at.
    with contextlib.suppress(Exception):
        if is_operation(event):
            return Look(operation=operation())
        if event.seconds < LEAST_SECONDS or event.cached:
            return out
        if (traced := trace_of(event)) is not None:
            scope = read_jaxpr(traced.jaxpr)
            source = engine_module().active().flat.source
            found = find_constants(scope, source and source())
            large = [x for x in found if x.bytes >= _LARGE or x.seconds > LEAST_SECONDS]
            uniform = (x for x in find_loops(scope) if x.uniform)
            out = Look(calls_back, scope.size, tuple(large), next(uniform, None))
    return out


def constant_findings(
    run: Run, remaining: Sequence[Event], limit: float
) -> tuple[list[Finding], list[Event]]:
    """The captured constants that make a function compile for long.

    **Returns:** a finding for each function, and the compilations that they count.
    """
    by_function: dict[Any, list[Event]] = {}
    for event in remaining:
        if _look_at(run, event).constants:
            by_function.setdefault(event.function.key(), []).append(event)
    found: list[Finding] = []
    explained: list[Event] = []
    for events in by_function.values():
        saved = sum(_by_constants(run, event) for event in events)
        if saved >= limit:
            found.append(_constant_finding(run, events, saved))
            explained += events
    return found, explained


def _constant_finding(run: Run, events: list[Event], saved: float) -> Finding:
    event = events[0]
    seen, function = _look_at(run, event), name_of(event.function)
    constants = sorted(seen.constants, key=lambda x: -x.seconds)
    first = constants[0]
    others = [f"{x.name or 'another'}, {x.type}" for x in constants[1:]]
    folded = dict.fromkeys(f"`{name}`" for x in constants for name in x.folded)
    facts = {
        "function": function,
        "name": f"`{first.name}`, " if first.name else "",
        "short": f"`{first.name}`" if first.name else "the array",
        "type": first.type,
        "size": show_bytes(first.bytes),
        "place": show_place(first.place),
        "others": f" So are {listed(others, 3)}." if others else "",
        "compiling": show_seconds(event.compile),
        "equations": plural(seen.equations, "equation"),
        "folded": listed(folded),
    }
    calls = (f"`{function}` at {show_place(line_of(e))}" for e in events)
    return make_finding(
        "captured constant",
        facts,
        "folded" if folded else None,
        seconds=sum(e.seconds for e in events),
        saves=saved,
        line=first.place,
        leaf=first.name,
        count=len(events),
        functions={function: len(events)},
        calls=dict(collections.Counter(calls)),
    )


def _look_at(run: Run, event: Event) -> Look:
    return run.looks.get(event.number, Look())


def _by_constants(run: Run, event: Event) -> float:
    """About what constants add to a compilation.

    That is what XLA takes beyond its usual share in this run, and at most what holding
    and folding them may take.
    """
    constants = _look_at(run, event).constants
    others = [
        e
        for e in run.events
        if e.compile and e.lower and not e.cached
        if not _look_at(run, e).constants
    ]
    shares = [e.compile / _before_xla(e) for e in others]
    usual = (statistics.median(shares) if shares else _USUAL) * _before_xla(event)
    # The former two take longer, too. In a small program an equation takes no longer
    # than an operation that is compiled by itself.
    if alone := [e.compile for e in others if is_operation(e)]:
        equations = _look_at(run, event).equations
        usual = min(usual, statistics.median(alone) * equations)
    return max(0.0, min(event.compile - usual, sum(x.seconds for x in constants)))


def _before_xla(event: Event) -> float:
    """The seconds of tracing and lowering."""
    return max(0.0, event.trace - event.nested) + event.lower


def loop_helps(run: Run, remaining: Sequence[Event]) -> Iterator[Finding]:
    """The unrolled loops, each once, with what `scan` would save of all compilations.

    That is by the number of equations, without what constants and any program cost.
    """
    alone = [e.seconds for e in run.events if e.compile and is_operation(e)]
    least = statistics.median(alone) if alone else 0.0
    by_place: dict[Any, list[tuple[Event, Look, UnrolledLoop]]] = {}
    for event in remaining:
        found = _look_at(run, event)
        if (loop := found.loop) is not None:
            by_place.setdefault(loop.place, []).append((event, found, loop))
    for place, all_found in by_place.items():
        saved = sum(
            max(0.0, event.seconds - _by_constants(run, event) - least)
            * (loop.equations - loop.scan_equations)
            / found.equations
            for event, found, loop in all_found
        )
        _, found, loop = max(all_found, key=lambda x: x[2].equations)
        functions = collections.Counter(name_of(e.function) for e, *_ in all_found)
        facts = {
            "loop": loop,
            "place": show_place(place),
            "functions": listed(f"`{name}`" for name in functions),
            "total": found.equations,
            "differ": _differ(loop),
            "xs": _scanned(loop),
        }
        yield make_finding(
            "scan",
            facts,
            seconds=sum(e.seconds for e, *_ in all_found),
            saves=saved,
            line=place,
            count=len(all_found),
            functions=dict(functions),
        )


def _differ(loop: UnrolledLoop) -> str:
    numbers = f"numbers in it differ: {listed(loop.numbers, 3)}"
    return f" ({numbers})" if loop.numbers else ""


def _scanned(loop: UnrolledLoop) -> str:
    """What the iterations of a loop do not share."""
    stacked = (
        "the layers' arrays, stacked (`eqx.filter_vmap` over their keys makes them)"
    )
    parts = [stacked] * loop.layered
    parts += ["an array of the numbers that differ"] * bool(loop.numbers)
    parts += ["the array that it takes parts of"] * loop.indexed
    return f"{' and '.join(parts)} as `xs`" if parts else "`xs=None, length=n`"


def cache_helps(run: Run) -> Iterator[Finding]:
    """What JAX's persistent cache would save, of what it keeps; and what it refuses."""
    compiled = [e for e in run.events if e.compile and not e.cached]
    refused = [e for e in compiled if _look_at(run, e).calls_back]
    if keeps_callbacks():
        refused = []
    if run.cache is None and not any(e.cached for e in run.events):
        kept = [e for e in compiled if e not in refused]
        yield _cache_help("persistent cache", run, kept, refused)
    yield _cache_help("host callbacks", run, refused, refused)


def _cache_help(
    cause: str, run: Run, events: list[Event], refused: list[Event]
) -> Finding:
    """That a cache could keep these events."""
    seconds = sum(e.compile for e in events)
    saved = seconds - _READING * len(events)
    names = listed(f"`{name_of(e.function)}`" for e in refused)
    facts = {
        "names": names,
        "version": jax.__version__,
        "compiling": show_seconds(seconds),
        "second": show_seconds(run.seconds - saved),
        "and_cache": "" if run.cache else " and the cache",
        "without": f" That is without {names}, which JAX does not keep."
        * bool(refused),
    }
    return make_finding(cause, facts, seconds=seconds, saves=saved)
