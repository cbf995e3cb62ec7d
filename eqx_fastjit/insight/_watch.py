"""What the doctor sees of a program that runs: compilations, waits, and how busy the
device is.
"""

import functools
import sys
import threading
import time
from typing import Any

from .record._samples import Sampler


_current: "Watch | None" = None


def watching() -> "Watch | None":
    """What watches this process now."""
    return _current


class Watch:
    """Watches this process. Nothing of it imports JAX before the program does."""

    def __init__(self, *, is_program: bool = True) -> None:
        # Rather than a block of code.
        self.is_program = is_program
        self.started, self.seconds = time.time(), 0.0
        self._cpu = time.process_time()
        self.events: list[Any] = []
        # What was seen in the traces of events, by their numbers.
        self.looks: dict[int, Any] = {}
        self.notes: list[str] = []
        # Of a program that has imported JAX.
        self._calls: Any = None
        self._own_seconds = 0.0
        self.sampler = Sampler()
        self.sampler.start()

    def jax_imported(self) -> None:
        """To be called once JAX, Equinox and the engine are there."""
        global _current
        _current = self
        from .record._calls import Calls
        from .record._events import history, unwatch, watch
        from .record._stale import StaleValues
        from .show._log import say_what_is_late

        # Now, as the program may clear the caches that tell of it.
        self._before = history()
        self._stale = StaleValues()
        watch(self._on_event)
        # The last to be told of a compilation: what the others do then is a part of it.
        self._calls = Calls(self._stale.on_call).__enter__()
        self._calls.callback(unwatch, self._on_event)
        say = functools.partial(print, "eqx-fastjit:", file=sys.stderr, flush=True)
        self._calls.callback(say_what_is_late(say))

    def stop(self) -> bool:
        """The program is over. Returns whether it had imported JAX."""
        global _current
        self.seconds, _current = time.time() - self.started, None
        self.sampler.stop()
        if self._calls is None:
            self.notes.append("The program did not import JAX.")
            return False
        self._calls.close()
        return True

    def report(
        self, program: str, exit_code: int | None, least: float | None = None
    ) -> Any:
        """The report on the program: up to now, if it is not over."""
        from .show._report import make_report

        return make_report(self.run(program, exit_code), least)

    def run(self, program: str, exit_code: int | None) -> Any:
        """What is known of the program; no rule is asked."""
        from .record._activity import activities
        from .record._file import cache_directory, Run

        if not self._calls:  # a report on nothing needs JAX all the same
            self.jax_imported()
            self._calls.close()
        calls = self._calls.seconds_of_calls()
        timed = self._calls.timed
        of_jit = [e for e in self.events if e.is_outside and e.function.place]
        notes = [*self.notes, *self._calls.notes]
        if why_not := self.sampler.why_not:
            notes.append(f"Where else Python was is not known: {why_not}.")
        return Run(
            program,
            self.started,
            self.seconds or time.time() - self.started,
            exit_code,
            cache_directory(),
            tuple(self.events),
            before=self._before,
            waits=sorted(self._calls.waits.found.values(), key=lambda x: -x.seconds),
            stale=[*self._stale.found.values()],
            looks=self.looks,
            ahead=self._calls.ahead,
            timed=timed,
            calls=calls._replace(doctor=calls.doctor + self._own_seconds),
            activities=activities(
                self.sampler.seconds(),
                [x for one in timed for x in one.lines],
                [e.frames[0] for e in of_jit if e.frames],
            ),
            cpu_seconds=time.process_time() - self._cpu,
            notes=notes,
        )

    def _on_event(self, event: Any) -> None:
        from .record._events import jaxpr_of
        from .record._look import look

        began = time.perf_counter()
        self._stale.on_event(event)
        self.events.append(event)
        if event.compile:
            self.looks[event.number] = look(event, jaxpr_of(event))

        own = time.perf_counter() - began
        if threading.current_thread() is threading.main_thread():
            self._own_seconds += own
        self.sampler.on_event(event, own)
