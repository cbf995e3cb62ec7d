"""The run as a trace that Perfetto (ui.perfetto.dev) opens.

The format is Chrome's JSON: a list of events with name, begin and duration in
microseconds, process and thread; what lies within another event is drawn below it.
"""

from collections.abc import Iterator
from typing import Any

from ._records import Record, show_difference
from ._report import Report, STAGES
from ._words import show_chain


def as_trace(report: Report) -> dict[str, Any]:
    """The compilations of a report, each with its stages and why it was there."""
    # Python's thread ids have too many bits for Perfetto.
    threads = {c.thread: 0 for c in report.compilations}
    threads = {thread: i for i, thread in enumerate(threads, 1)}
    events = [_meta("process_name", 0, report.program)]
    events += [_meta("thread_name", i, f"thread {i}") for i in threads.values()]
    for compilation in report.compilations:
        start = max(0.0, compilation.started - report.started)
        events += _events(compilation, threads[compilation.thread], start)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _meta(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": 1, "tid": thread, "args": {"name": name}}


def _events(record: Record, thread: int, start: float) -> Iterator[dict[str, Any]]:
    def event(name: str, category: str, start: float, seconds: float, **args: Any):
        times = {"ts": round(1e6 * start, 1), "dur": round(1e6 * seconds, 1)}
        what = {"ph": "X", "name": name, "cat": category, "pid": 1, "tid": thread}
        return {**what, **times, "args": args}

    args: dict[str, Any] = {"cause": record.why, "at": show_chain(record.frames)}
    args["differences"] = list(map(show_difference, record.differences))
    total = record.trace + record.lower + record.compile
    yield event(record.function, "function", start, total, **args)
    for name, label in STAGES.items():
        if (seconds := getattr(record, name)) > 0:
            yield event(label, name, start, seconds)
            start += seconds
