"""What the doctor sees of a program: compilations, calls, waits, where Python was."""

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
        global _current
        _current = self
        # Rather than a block of code.
        self.is_program = is_program
        self.started, self._cpu_before = time.time(), time.process_time()
        # Once it is over: of the wall clock, and of all threads on the CPU.
        self.seconds = self.cpu_seconds = 0.0

        self.events: list[Any] = []
        # What was seen in the traces of events, by their numbers.
        self.looks: dict[int, Any] = {}
        self.notes: list[str] = []
        # Of a program that has imported JAX: what it had compiled before, its calls,
        # and values that have changed since they were traced.
        self._before: list[Any] = []
        self._calls: Any = None
        self._stale: Any = None
        # Of the main thread, for looking at events.
        self._own_seconds = 0.0

        self.sampler = Sampler()
        self.sampler.start()

    def jax_imported(self) -> None:
        """To be called once JAX, Equinox and the engine are there."""
        from .record._calls import Calls
        from .record._events import history, unwatch, watch
        from .record._stale import StaleValues
        from .show._log import say_what_is_late

        # Now, as the program may clear the caches that tell of it.
        self._before = history()
        self._stale = StaleValues()
        watch(self._on_event)
        # It is told of a compilation after the others: so what they do then is no part
        # of the next call, which begins when it is told.
        self._calls = Calls(self._stale.on_call).__enter__()
        self._calls.callback(unwatch, self._on_event)
        say = functools.partial(print, "eqx-fastjit:", file=sys.stderr, flush=True)
        self._calls.callback(say_what_is_late(say))

    def stop(self) -> bool:
        """The program is over. Returns whether it had imported JAX."""
        global _current
        _current = None
        self.seconds = time.time() - self.started
        self.cpu_seconds = time.process_time() - self._cpu_before
        self.sampler.stop()
        if self._calls is None:
            self.notes.append("The program did not import JAX.")
            return False
        self._calls.close()
        return True

    def report(
        self, program: str, exit_code: int | None, least: float | None = None
    ) -> Any:
        """The report on the program: up to now, if it is not over.

        `least`: the seconds below which nothing has a row (`make_report`).
        """
        from .show._report import make_report

        return make_report(self.run(program, exit_code), least)

    def run(self, program: str, exit_code: int | None) -> Any:
        """What is known of the program; no rule is asked."""
        from .record._activity import activities
        from .record._calls import Calls
        from .record._file import cache_directory, Run

        # Of a program that has not imported JAX there are none.
        calls = Calls() if self._calls is None else self._calls
        calls.end_calls()
        seconds = calls.seconds_of_calls()
        # The lines that call what is jitted by this library, and by `jax.jit`.
        ours = [line for timed in calls.timed for line in timed.lines]
        of_jit = [e for e in self.events if e.is_outside and e.function.place]
        others = [e.frames[0] for e in of_jit if e.frames]

        notes = [*self.notes, *calls.notes]
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
            waits=calls.waits.by_seconds(),
            stale=[*self._stale.found.values()] if self._stale else [],
            looks=self.looks,
            ahead=calls.ahead,
            timed=calls.timed,
            calls=seconds._replace(doctor=seconds.doctor + self._own_seconds),
            activities=activities(self.sampler.seconds(), ours, others),
            cpu_seconds=self.cpu_seconds or time.process_time() - self._cpu_before,
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

        # A report is on the seconds of the main thread, as the samples are.
        own = time.perf_counter() - began
        if threading.current_thread() is threading.main_thread():
            self._own_seconds += own
        self.sampler.on_event(event, own)
