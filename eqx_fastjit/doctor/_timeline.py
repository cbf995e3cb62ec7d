"""The run as a trace that Perfetto and chrome://tracing open.

The format is Chrome's JSON: a list of events with name, begin and duration in
microseconds, process and thread; what lies within another event is drawn below it.
"""

import threading
from collections.abc import Iterator
from typing import Any

from ._report import Compilation, Report
from ._sampler import Stretch
from ._watch import Watch


_STAGES = {
    "trace": "tracing",
    "lower": "lowering",
    "compile": "XLA's compiler",
    "first_run": "first run",
}
# Rows: where the main thread was, by samples, has one of its own.
_MAIN, _SAMPLES = 1, 2
KINDS = {
    "import": "importing",
    "wait": "blocked by the device",
    "own": "the doctor itself",
    "jax": "in JAX, Equinox or eqx_fastjit",
    "library": "in a library",
    "line": "at this line",
}
# In seconds. Equal samples that are this close to each other are one event.
_GAP = 0.1


def timeline(watch: Watch, report: Report) -> dict[str, Any]:
    """The trace of what was seen, as it is written in JSON; the report has reasons."""
    # Rows have small numbers: Python's thread ids have too many bits for Perfetto.
    rows = {threading.main_thread().ident: _MAIN}
    bars = report.compilations
    for bar in bars:
        rows.setdefault(bar.thread, _SAMPLES + len(rows))
    names = {_MAIN: "main thread", _SAMPLES: "where the main thread was (sampled)"}
    for tid in rows.values():
        names.setdefault(tid, f"thread {tid}")
    events = [
        _meta("process_name", 0, report.program),
        *[_meta("thread_name", tid, name) for tid, name in names.items()],
        *[x for bar in bars for x in _compilation(bar, rows[bar.thread])],
        *_samples(watch),
    ]
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _meta(what: str, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": 1, "tid": tid, "args": {"name": name}}


def _event(
    name: str, category: str, tid: int, start: float, seconds: float, **args: Any
) -> dict[str, Any]:
    times = {"ts": round(1e6 * max(0.0, start), 1), "dur": round(1e6 * seconds, 1)}
    what = {"ph": "X", "name": name, "cat": category, "pid": 1, "tid": tid}
    return {**what, **times, "args": args}


def _compilation(bar: Compilation, tid: int) -> Iterator[dict[str, Any]]:
    args = {"cause": bar.cause, "called at": bar.site or "?", "jit": bar.jit}
    yield _event(bar.function, "compile", tid, bar.start, bar.seconds, **args)
    for name, start, seconds in bar.stages():
        yield _event(_STAGES[name], name, tid, start, seconds)


def _samples(watch: Watch) -> Iterator[dict[str, Any]]:
    merged: list[Stretch] = []
    for where, start, end in watch.sampler.kept():
        if merged and merged[-1].where == where and start - merged[-1].end < _GAP:
            merged[-1] = merged[-1]._replace(end=end)
        else:
            merged.append(Stretch(where, start, end))
    for (kind, line), start, end in merged:
        name = KINDS[kind] if line is None else str(line)
        began = start - watch.started
        yield _event(name, kind, _SAMPLES, began, end - start, what=KINDS[kind])
