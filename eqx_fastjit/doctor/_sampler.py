"""Where the main thread is, sampled some fifty times a second.

A call that neither compiles nor blocks is not touched otherwise. How long such calls
take in total, and the rest of the program, is estimated from samples.
"""

import _thread
import bisect
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

from ._sites import is_library, Line, line_at, package_of


# Seconds between two looks, of about 20 us each.
_INTERVAL = 0.02
# Kept one by one, to be compared with the compilations; older ones are summed up.
_MAX_STRETCHES = 20_000
# Frames that are looked at: what is deeper is recursion.
_MAX_DEPTH = 400


class Where(NamedTuple):
    """What the main thread was doing."""

    # "import", "wait" (for the device), "own" (what watches), "jax" (in JAX, Equinox or
    # this library, called by the line), "library" (in another one) or "line".
    kind: str
    # The innermost line of the program itself.
    line: Line | None


class Stretch(NamedTuple):
    """Samples in a row that found the same. Seconds since the epoch, and of them."""

    where: Where
    start: float
    end: float


class Sampler:
    """Looks at the main thread until it is stopped.

    `compiling` tells when it was tracing, lowering or compiling so far, which is
    measured elsewhere: begin and end of each time, in seconds since the epoch.
    """

    def __init__(self, compiling: Callable[[], list[tuple[float, float]]]) -> None:
        self._running = False
        self._wake = threading.Event()
        # Held by the thread.
        self._alive = _thread.allocate_lock()
        self._compiling = compiling
        self._stretches: list[Stretch] = []
        # Of stretches no longer kept: seconds.
        self._summed: dict[Where, float] = {}
        self._main = threading.main_thread().ident
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin. The thread is one that `threading.enumerate` does not know."""
        self._running = True
        self._alive.acquire()
        _thread.start_new_thread(self._loop, ())

    def stop(self) -> None:
        """Have the thread end, and wait for that.

        Python 3.11 may abort if a thread is still there when the process ends. (After a
        fork it is gone, and has left its lock behind.)
        """
        if self._running:
            self._running = False
            self._wake.set()
            self._alive.acquire(timeout=1.0)

    def _loop(self) -> None:
        try:
            self._look()
        finally:
            self._alive.release()

    def _look(self) -> None:
        before = time.time()
        while not self._wake.wait(_INTERVAL):
            frame = sys._current_frames().get(self._main or 0)
            now = time.time()
            # Where a long call holds the GIL there is no look, and this one is its.
            if frame is not None:
                self.add(where(frame), before, now)
            before = now

    def add(self, found: Where, start: float, end: float) -> None:
        """Take in that it was there from one time to another."""
        with self._lock:
            kept = self._stretches
            if kept and kept[-1].where == found and kept[-1].end == start:
                kept[-1] = kept[-1]._replace(end=end)
                return
            kept.append(Stretch(found, start, end))
            if len(kept) > _MAX_STRETCHES:
                # What is compiled now may have begun in the second half.
                self._sum(kept[: _MAX_STRETCHES // 2], self._summed)
                del kept[: _MAX_STRETCHES // 2]

    def seconds(self) -> dict[Where, float]:
        """How long it was where, so far, when it did not compile."""
        with self._lock:
            out = dict(self._summed)
            self._sum(self._stretches, out)
        return out

    def kept(self) -> list[Stretch]:
        """The latest samples."""
        with self._lock:
            return list(self._stretches)

    def _sum(self, stretches: list[Stretch], out: dict[Where, float]) -> None:
        intervals = merged(self._compiling())
        ends = [end for _, end in intervals]
        for found, start, end in stretches:
            seconds = end - start
            for i in range(bisect.bisect_left(ends, start), len(intervals)):
                if intervals[i][0] >= end:
                    break
                seconds -= min(end, intervals[i][1]) - max(start, intervals[i][0])
            out[found] = out.get(found, 0.0) + max(0.0, seconds)


def merged(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same times as intervals that are in order and do not overlap."""
    out: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if out and start <= out[-1][1]:
            out[-1] = out[-1][0], max(end, out[-1][1])
        else:
            out.append((start, end))
    return out


def where(frame: FrameType | None) -> Where:
    """What a thread is doing whose innermost frame this is."""
    kind = ""
    for _ in range(_MAX_DEPTH):
        if frame is None:
            break
        code = frame.f_code
        file = code.co_filename
        # Equinox and dataclasses make functions of strings: "<string>" and the like.
        if not file.startswith("<") and not is_library(file):
            return Where(kind or "line", line_at(frame))
        kind = _kind(kind, file, code.co_name)
        frame = frame.f_back
    return Where(kind or "library", None)


def _kind(kind: str, file: str, function: str) -> str:
    """The kind, one library frame further out."""
    if kind in ("own", "wait"):
        return kind
    package = package_of(file)
    if package == "eqx_fastjit":
        if file.endswith("_waits.py") and function == "timed":
            return "wait"
        if os.path.basename(os.path.dirname(file)) in ("doctor", "insight"):
            return "own"
    if kind == "import" or file.startswith("<frozen importlib"):
        return "import"
    if package in ("jax", "equinox", "eqx_fastjit"):
        return "jax"
    return kind or "library"
