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


_PARTS = (
    ("trace", "tracing"),
    ("lower", "lowering"),
    ("compile", "XLA's compiler"),
    ("first_run", "first run"),
)
# Rows: where the main thread was, by samples, has one of its own.
_MAIN, _SAMPLES = 1, 2
# Kinds of samples, for people.
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
    """The trace, as it is written in JSON.

    **Arguments:**

    - `watch`: what was seen.
    - `report`: what was made of it, for the reasons.
    """
    # Rows have small numbers, because Python's thread ids have too many bits for
    # Perfetto.
    main = threading.main_thread().ident
    rows = {main: _MAIN}
    for bar in report.compilations:
        rows.setdefault(bar.thread, _SAMPLES + len(rows))
    events: list[dict[str, Any]] = []
    for bar in report.compilations:
        events += _compilation(bar, rows[bar.thread])
    events += _samples(watch)
    names = {_MAIN: "main thread", _SAMPLES: "where the main thread was (sampled)"}
    for tid in rows.values():
        names.setdefault(tid, f"thread {tid}")
    header = [_meta("process_name", 0, report.program)]
    header += [_meta("thread_name", tid, name) for tid, name in names.items()]
    return {"displayTimeUnit": "ms", "traceEvents": [*header, *events]}


def _meta(what: str, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": 1, "tid": tid, "args": {"name": name}}


def _event(
    name: str, category: str, tid: int, start: float, seconds: float, **args: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": 1,
        "tid": tid,
        "ts": round(1e6 * max(0.0, start), 1),
        "dur": round(1e6 * seconds, 1),
        "args": args,
    }


def _compilation(bar: Compilation, tid: int) -> Iterator[dict[str, Any]]:
    args = {"cause": bar.cause, "called at": bar.site or "?", "jit": bar.jit}
    yield _event(bar.function, "compile", tid, bar.start, bar.seconds, **args)
    start = bar.start
    for name, label in _PARTS:
        seconds = getattr(bar, name)
        if seconds > 0:
            yield _event(label, name, tid, start, seconds)
            start += seconds


def _samples(watch: Watch) -> Iterator[dict[str, Any]]:
    last: Stretch | None = None
    for stretch in watch.sampler.kept():
        if last is not None:
            if stretch.where == last.where and stretch.start - last.end < _GAP:
                last = last._replace(end=stretch.end)
                continue
            yield _sample(watch, last)
        last = stretch
    if last is not None:
        yield _sample(watch, last)


def _sample(watch: Watch, stretch: Stretch) -> dict[str, Any]:
    (kind, line), start, end = stretch
    name = KINDS[kind] if line is None else f"{line}"
    began = start - watch.started
    return _event(name, kind, _SAMPLES, began, end - start, what=KINDS[kind])
