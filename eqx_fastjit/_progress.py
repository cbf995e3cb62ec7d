"""A line of progress on a terminal, for what takes more than a moment."""

import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from ._units import show_seconds


# Seconds that pass in silence: most of what is told takes less.
_SILENT = 1.0
# Seconds between two changes of the line.
_INTERVAL = 0.2


class Progress:
    """Shows progress on stderr, if that is a terminal, and clears the line at the end.

    No thread draws a bar, because it would be measured along with the work. A stage is
    announced when it begins, and a long one reports how far it is. Only the stage that
    is running after the first second is announced by a thread, which wakes once: the
    compiler, for example, cannot report anything.
    """

    def __init__(
        self,
        title: str,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._title = title
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._begun = self._told = clock()
        self._shown = False
        self._stage = ""
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        self._on = bool(getattr(self._stream, "isatty", lambda: False)())

    def stage(self, text: str, seconds: float = 0.0) -> None:
        """A stage begins, which should take `seconds`, if that is known."""
        about = f", about {show_seconds(seconds)}" if seconds >= _SILENT else ""
        self._stage = f"{text}{about}"
        if self._on and (self._late() or self._shown or seconds >= _SILENT):
            self._show(self._stage)

    def step(self, text: str, done: int, total: int) -> None:
        """Report how much of a stage is done. Cheap, unless it is time to print it."""
        if not self._on:
            return
        now = self._clock()
        if now - self._begun >= _SILENT and now - self._told >= _INTERVAL:
            self._show(f"{text}: {done} of {total}")

    def _late(self) -> bool:
        return self._clock() - self._begun >= _SILENT

    def show_if_late(self) -> None:
        """Announce the running stage, if nothing was printed in time."""
        with self._lock:
            if self._on and self._stage and not self._shown and self._late():
                self._show(self._stage)

    def _show(self, text: str) -> None:
        with self._lock:
            self._told = self._clock()
            self._shown = True
            line = f"{self._title}: {text}"[:100]
            self._stream.write(f"\r{line}\x1b[K")
            self._stream.flush()

    def __enter__(self) -> "Progress":
        if self._on:
            self._timer = threading.Timer(_SILENT, self.show_if_late)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._on = False
            if self._shown:
                self._stream.write("\r\x1b[K")
                self._stream.flush()
