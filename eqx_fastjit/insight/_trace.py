"""The run as a trace that Perfetto (ui.perfetto.dev) opens.

The format is Chrome's JSON: a list of events with name, begin and duration in
microseconds, process and thread; what lies within another event is drawn below it.
"""

from collections.abc import Iterator
from typing import Any

from ._events import Event
from ._report import Report, STAGES
from ._why import name_of, show_difference, why
from ._words import show_chain


def as_trace(report: Report) -> dict[str, Any]:
    """The compilations of a report, each with its stages and why it was there."""
    names = dict.fromkeys(event.thread for event in report.run.events)
    threads = {name: i for i, name in enumerate(names, 1)}
    shown = [_meta("process_name", 0, report.run.program)]
    shown += [_meta("thread_name", i, name) for name, i in threads.items()]
    for event in report.run.events:
        start = max(0.0, event.started - report.run.started)
        shown += _compilation(event, threads[event.thread], start)
    return {"displayTimeUnit": "ms", "traceEvents": shown}


def _meta(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": 1, "tid": thread, "args": {"name": name}}


def _compilation(event: Event, thread: int, start: float) -> Iterator[dict[str, Any]]:
    def span(name: str, category: str, start: float, seconds: float, **args: Any):
        times = {"ts": round(1e6 * start, 1), "dur": round(1e6 * seconds, 1)}
        what = {"ph": "X", "name": name, "cat": category, "pid": 1, "tid": thread}
        return {**what, **times, "args": args}

    args: dict[str, Any] = {"cause": why(event), "at": show_chain(event.frames)}
    args["differences"] = list(map(show_difference, event.reason.differences))
    total = event.trace + event.lower + event.compile
    yield span(name_of(event.function), "function", start, total, **args)
    for name, label in STAGES.items():
        if (seconds := getattr(event, name)) > 0:
            yield span(label, name, start, seconds)
            start += seconds
