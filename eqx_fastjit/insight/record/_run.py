"""A run of a program: all that was recorded of it."""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from eqx_fastjit.insight._words import plural

from ._activity import Activity
from ._calls import CallSeconds, Timed
from ._events import Event
from ._look import Look


# Programs that run at the same time, for each core, and the share of its time that a
# program had the CPU, from which and up to which this is said.
_BUSY, _SLOWED = 1.5, 0.8


@dataclasses.dataclass(frozen=True)
class Run:
    """What is known of a run of a program."""

    program: str
    started: float
    seconds: float
    # `None` of a program that has not ended, or was killed.
    exit_code: int | None
    # JAX's directory for what was compiled, if it was set.
    cache: str | None
    events: Sequence[Event]
    # What a file does not have: what the process had compiled before, waits, globals
    # that are stale, what was seen in the programs of events, by their numbers, what
    # the device did, what was called, how long, what the main thread did beside that,
    # and the seconds of all threads on the CPU.
    before: Sequence[Event] = ()
    waits: Sequence[Any] = ()
    stale: Sequence[Any] = ()
    looks: Mapping[int, Look] = field(default_factory=dict[int, Look])
    ahead: float = 0.0
    timed: Sequence[Timed] = ()
    calls: CallSeconds | None = None
    activities: Sequence[Activity] = ()
    cpu_seconds: float = 0.0
    # What could not be seen.
    notes: Sequence[str] = ()

    def for_json(self) -> dict[str, Any]:
        """All but what refers to this process."""
        names = [x.name for x in dataclasses.fields(self) if x.name != "timed"]
        return {name: getattr(self, name) for name in names}

    def look(self, event: Event) -> Look:
        """What was to be seen in the program of an event."""
        return self.looks.get(event.number, Look())

    @functools.cached_property
    def busy(self) -> str:
        """That other programs slow it down, so that seconds say little, in words."""
        cores = os.cpu_count() or 1
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
        is_slowed = 0 < self.cpu_seconds < _SLOWED * self.seconds
        if load <= _BUSY * cores or not is_slowed:
            return ""

        return (
            f": other programs keep this machine busy, with a load of {load:.1f} on "
            f"{plural(cores, 'core')}, so all seconds are longer"
        )
