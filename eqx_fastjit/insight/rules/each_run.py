"""In each run: rules of what JAX's persistent cache keeps, or refuses."""

from collections.abc import Iterator

from eqx_fastjit.insight._words import listed, show_seconds
from eqx_fastjit.insight.record._private import keeps_callbacks
from eqx_fastjit.insight.record._why import name_of

from ._rules import Case, Row, Rule


# Seconds to read a compiled program from the cache.
_READING = 4e-3

CACHE = Rule("run-cache", "eqx-fastjit run --cache", "in later runs{more}")
REFUSED = Rule(
    "callbacks-not-kept",
    "EQX_ON_ERROR=nan, and eqx-fastjit run --cache",
    "in later runs: JAX's cache keeps no checks, those of {function}",
)

RULES = (CACHE, REFUSED)


def rows(case: Case) -> Iterator[Row]:
    """What the cache would save in later runs, and what it refuses."""
    run, keeps = case.run, keeps_callbacks()
    compiled = [e for e in run.events if e.compile and not (e.cached or e.failed)]
    kept = [e for e in compiled if keeps or not run.look(e).calls_back]
    # What calls back for Equinox's checks alone: `EQX_ON_ERROR` turns these off.
    checks = [e for e in compiled if run.look(e).only_checks and not keeps]
    is_set = run.cache is not None or any(e.cached for e in run.events)

    # Of the program as it is, with what other rows save.
    whole = sum(max(0.0, e.compile - _READING) for e in kept)
    for rule, events in ((CACHE, [] if is_set else kept), (REFUSED, checks)):
        remaining = [e for e in events if e in case.left]
        seconds = sum(min(case.left[e], e.compile) for e in remaining)
        saved = max(0.0, seconds - _READING * len(remaining))
        more = f" ({show_seconds(whole)} without edits)" if whole > 1.2 * saved else ""
        names = listed((name_of(e.function) for e in remaining), 3)
        part = rule.part({"function": names, "more": more}, saves=saved)
        name = "the program" if rule is CACHE else names
        yield Row(name, (part,), seconds=seconds, saves=saved, later=saved)
