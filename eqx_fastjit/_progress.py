"""A line on a terminal that says what goes on, for what takes more than a moment."""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from ._units import show_seconds


# Seconds that pass in silence: most of what is told takes less.
_SILENT = 1.0
# Seconds between two changes of the line.
_INTERVAL = 0.2


class Progress:
    """Tells on stderr what goes on, if that is a terminal, and tidies up after itself.

    No thread draws a bar: it would be measured with what it is drawn for. A stage is
    announced as it begins, and a long one has to tell in between how far it has come.
    Only the stage that is going on after the first second is announced by a thread,
    which wakes once: the compiler, say, cannot tell anything.

    **Arguments:**

    - `title`: what is being done.
    - `stream`: where to write; stderr if left out.
    - `clock`: seconds.
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
        """A stage begins, that will take `seconds` if that can be foreseen."""
        about = f", about {show_seconds(seconds)}" if seconds >= _SILENT else ""
        self._stage = f"{text}{about}"
        if self._on and (self._late() or self._shown or seconds >= _SILENT):
            self._show(self._stage)

    def step(self, text: str, done: int, total: int) -> None:
        """So much of a stage is done. Cheap, unless it is time to say so."""
        if not self._on:
            return
        now = self._clock()
        if now - self._begun >= _SILENT and now - self._told >= _INTERVAL:
            self._show(f"{text}: {done} of {total}")

    def _late(self) -> bool:
        return self._clock() - self._begun >= _SILENT

    def show_if_late(self) -> None:
        """Announce the stage that is going on, if nothing was told in time."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._on = False
            if self._shown:
                self._stream.write("\r\x1b[K")
                self._stream.flush()
