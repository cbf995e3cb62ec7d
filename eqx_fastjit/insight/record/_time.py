"""Where the seconds of the main thread went: each second has one name."""

import collections
from typing import NamedTuple

from eqx_fastjit._facts import Place

from ._activity import (
    DEVICE,
    DISPATCH,
    IMPORTS,
    JIT,
    OPERATIONS,
    PYTHON,
    TRANSFERS,
)
from ._run import Run
from ._why import costliest, stages_of


DOCTOR = "doctor"

LABELS = {
    "trace": "tracing",
    "lower": "lowering",
    "compile": "XLA's compiler",
    DEVICE: "the device",
    DISPATCH: "dispatch",
    OPERATIONS: "operations outside of jit",
    TRANSFERS: "transfers",
    JIT: "functions of jax.jit",
    IMPORTS: "imports",
    PYTHON: "other Python",
    DOCTOR: "the doctor itself",
}

# The share of a run from which on the line of a part is told.
_MATTERS = 0.1


class Time(NamedTuple):
    """A part of the run's time."""

    name: str
    label: str
    seconds: float
    # The line of the user's that has most of it, if that matters, of what the device or
    # Python did.
    line: Place | None = None


def times_of(run: Run) -> list[Time]:
    """Parts that add up to the seconds of the run, the largest first.

    What compiled, what calls took and what waited is known exactly. What is left is
    divided as the samples are.
    """
    seconds = collections.defaultdict[str, float](float)
    # Other threads compile at the same time as the main one does something else.
    for event in run.events:
        if event.thread == "MainThread":
            for stage, took in stages_of(event).items():
                seconds[stage] += took
            seconds[DEVICE] += event.first_run
    if run.calls is not None:
        for name, took in run.calls._asdict().items():
            seconds[name] += took

    known = sum(seconds.values())
    left = max(0.0, run.seconds - known)
    if known > run.seconds > 0:  # waits of several threads, say
        for name in seconds:
            seconds[name] *= run.seconds / known
    sampled = sum(x.seconds for x in run.activities)
    for activity in run.activities:
        seconds[activity.kind] += left * activity.seconds / sampled
    if not sampled:
        seconds[PYTHON] += left

    calls = [(x.line, x.calls * x.device) for x in run.timed]
    rest = seconds[DEVICE] - sum(took for _, took in calls)
    lines = {DEVICE: costliest([*calls, (None, rest)])}
    for kind in (PYTHON, TRANSFERS, OPERATIONS):
        own = [x for x in run.activities if x.kind == kind and x.most]
        # Operations are edited in their loop, and Python where it computes.
        lines[kind] = costliest(
            (x.most if kind == PYTHON else x.statement.place, x.seconds) for x in own
        )
    times: list[Time] = []
    for name, took in seconds.items():
        line = lines.get(name) if took >= _MATTERS * run.seconds else None
        times.append(Time(name, LABELS[name], took, line))
    return sorted((x for x in times if x.seconds > 0), key=lambda x: -x.seconds)
