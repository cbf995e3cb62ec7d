"""Where the time of a run went. The parts add up to the total, and none is negative.

Compiling and blocking are measured; the rest is divided according to samples.
"""

import collections
import time

from ._report import LineTime, stages, TimePart, TimeSpent
from ._sampler import Where
from ._sites import is_library, Line
from ._watch import Watch


# Lines that are named, for each part.
_LINES = 3
# Less than this share of the run is not worth a line.
_LEAST = 0.01

_LABELS = {
    "compile": "XLA's compiler",
    "trace": "tracing",
    "lower": "lowering",
    "import": "imports",
    "wait": "blocked by the device",
    # Their work included, where it is done, or waited for, before they return.
    "calls": "calls of jitted functions",
    "eager": "JAX operations outside of jit",
    "python": "Python, outside of JAX",
    "own": "the doctor's own inspection of traces",
}


def time_spent(watch: Watch) -> TimeSpent:
    """Divide the time of a run so far, or of one that is over, into its parts."""
    measured = _measured(watch)
    total = watch.so_far()
    known = sum(measured.values())
    if known > total > 0:  # several threads at once
        measured = {name: x * total / known for name, x in measured.items()}
    rest = max(0.0, total - sum(measured.values()))
    lines: dict[str, dict[Line, float]] = collections.defaultdict(
        lambda: collections.defaultdict(float)
    )
    sampled: dict[str, float] = collections.defaultdict(float)
    sites = call_sites(watch)
    compiled = [c.site for c in tuple(watch.plain.compiles) if c.site is not None]
    eager = {line[:2] for line in compiled} - sites
    for found, seconds in watch.sampler.seconds().items():
        part = _part(found, sites, eager)
        if part in measured:
            continue
        sampled[part] += seconds
        if found.line is not None:
            lines[part][found.line] += seconds
    for waiting in tuple(watch.waits.by_call.values()):
        lines["wait"][waiting.line] += waiting.waited
    if not any(sampled.values()):
        sampled["python"] = 1.0
    factor = rest / sum(sampled.values())
    seconds = {**measured, **{part: x * factor for part, x in sampled.items()}}
    parts = [
        TimePart(
            name,
            label,
            seconds[name],
            _lines(lines[name], factor if name in sampled else 1.0, total),
        )
        for name, label in _LABELS.items()
        if seconds.get(name)
    ]
    return TimeSpent(total, tuple(sorted(parts, key=lambda part: -part.seconds)))


def _measured(watch: Watch) -> dict[str, float]:
    # The time of a trace inside another one is part of the outer one's time.
    outer = [s.trace for s in tuple(watch.seen.values()) if not s.trace.inlined]
    out = stages([*outer, *tuple(watch.plain.compiles)])
    del out["first_run"]  # is sampled, as other calls are
    # It is not known which stage a running compilation has reached.
    outermost = [t for t in tuple(watch.begun.values()) if t.inside is None]
    out["compile"] += sum(time.time() - t.started for t in outermost[:1])
    out["wait"] = sum(w.waited for w in tuple(watch.waits.by_call.values()))
    out["own"] = watch.own_seconds
    return out


_Sites = set[tuple[str, int]]


def call_sites(watch: Watch) -> _Sites:
    """Lines of the program that called a jitted function, file and number."""
    sites = [s.site for s in tuple(watch.seen.values())]
    for c in tuple(watch.plain.compiles):
        # `jnp.where` and its like are functions under jit too, of JAX's own.
        place = None if c.miss is None else c.miss.place
        if place is not None and not is_library(place.file):
            sites.append(c.site)
    return {site[:2] for site in sites if site is not None}


def _part(found: Where, sites: _Sites, eager: _Sites) -> str:
    if found.kind in ("import", "wait", "own"):
        return found.kind
    # While only C++ runs, there is no frame other than that of the line.
    line = found.line and found.line[:2]
    if found.kind in ("line", "jax") and line in sites:
        return "calls"
    is_eager = found.kind == "jax" or (found.kind == "line" and line in eager)
    return "eager" if is_eager else "python"


def _lines(
    lines: dict[Line, float], factor: float, total: float
) -> tuple[LineTime, ...]:
    most = sorted(lines.items(), key=lambda item: -item[1])[:_LINES]
    shown = [LineTime(line.file, line.line, x * factor) for line, x in most]
    return tuple(x for x in shown if x.seconds >= _LEAST * total)
