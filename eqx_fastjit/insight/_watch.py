"""What the doctor sees of a program that runs: compilations, waits, and how busy the
device is.
"""

import sys
import time
from typing import Any


_current: "Watch | None" = None


def watching() -> "Watch | None":
    """What watches this process now."""
    return _current


class Watch:
    """Watches this process. Nothing of it imports JAX before the program does."""

    def __init__(self, *, is_program: bool = True) -> None:
        # Rather than a block of code.
        self.is_program = is_program
        self.started = time.time()
        self.seconds = 0.0
        self._cpu = time.process_time()
        self.events: list[Any] = []
        # What was seen in the traces of events, by their numbers.
        self.looks: dict[int, Any] = {}
        self._before: list[Any] = []
        self.notes: list[str] = []
        # Of a program that has imported JAX.
        self._device: Any = None
        self._stale: Any = None

    def jax_imported(self) -> None:
        """To be called once JAX, Equinox and the engine are there."""
        global _current
        _current = self
        from ._device import Device
        from ._events import history, unwatch, watch
        from ._log import say_what_is_late
        from ._stale import StaleValues

        # Now, as the program may clear the caches that tell of it.
        self._before = history()
        self._stale = StaleValues()
        watch(self._on_event)
        # The last to be told of a compilation: what the others do then is a part of it.
        self._device = Device(self._stale.on_call).__enter__()
        self._device.callback(unwatch, self._on_event)
        self._device.callback(say_what_is_late(self._say))
        missing = self._device.missing
        self.notes += [f"Waits in {name} are not seen." for name in missing]

    def _say(self, line: str) -> None:
        print(f"eqx-fastjit: {line}", file=sys.stderr, flush=True)

    def stop(self) -> None:
        """The program is over."""
        global _current
        self.seconds = time.time() - self.started
        if _current is not self:
            self.notes.append("The program did not import JAX.")
            self.jax_imported()
        self._device.close()
        _current = None

    def report(
        self, program: str, exit_code: int | None, least: float | None = None
    ) -> Any:
        """The report on the program: up to now, if it is not over."""
        from ._file import cache_directory, Run
        from ._report import make_report

        run = Run(
            program,
            self.started,
            self.seconds or time.time() - self.started,
            exit_code,
            cache_directory(),
            tuple(self.events),
            before=self._before,
            waits=self._device.waits(),
            stale=self._stale.found(),
            looks=self.looks,
            device=self._device.use(),
            cpu_seconds=time.process_time() - self._cpu,
            notes=self.notes,
        )
        return make_report(run, least)

    def _on_event(self, event: Any) -> None:
        from ._events import jaxpr_of
        from ._look import look

        self._stale.on_event(event)
        self.events.append(event)
        if event.compile:
            self.looks[event.number] = look(event, jaxpr_of(event))
