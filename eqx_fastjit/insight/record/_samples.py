"""Where Python is: the stack of the main thread, every few milliseconds.

A thread of the C engine sends a signal to the main thread (`csrc/ticks.c`), whose handler
notes the stack, and the seconds since the note before. So a stack stands for the seconds
up to it, and all of a run is in some stack. Pyinstrument asks at each call of a Python
function instead, which takes more than half as long again where JAX traces.

Nothing here imports JAX, since a program is sampled before it does.
"""

import collections
import signal
import sys
import threading
import time
from types import CodeType, FrameType
from typing import NamedTuple


# Seconds between two samples.
INTERVAL = 0.01
# The most frames of a stack that are noted, innermost first.
_MAX_FRAMES = 300
# After so many samples the older half is added up. (An event takes back the last ones.)
_MAX_RECENT = 1 << 16


class Position(NamedTuple):
    """Where a frame is: its code, and the instruction."""

    code: CodeType
    instruction: int


# The positions of a stack, innermost first.
Stack = tuple[Position, ...]


class _Sample(NamedTuple):
    time: float
    seconds: float
    stack: Stack


class Sampler:
    """Samples this thread from `start` to `stop`, if it is the main one.

    It uses `SIGURG`, which programs ignore by default, and leaves a program's own
    handler alone. Windows has no such signal.
    """

    def __init__(self) -> None:
        # Why there are no samples, if there are none.
        self.why_not = ""
        self._is_running = False
        self._before: object = None
        self._last = 0.0
        self._recent: list[_Sample] = []
        self._seconds = collections.Counter[Stack]()

    def start(self) -> None:
        """Begin. If it cannot, `why_not` says why."""
        start_ticks = _native("start_ticks")
        if start_ticks is None:
            self.why_not = "the C engine is not there, or this is Windows"
        elif threading.current_thread() is not threading.main_thread():
            self.why_not = "this is not the main thread"
        elif signal.getsignal(signal.SIGURG) not in (signal.SIG_DFL, signal.SIG_IGN):
            self.why_not = "the program handles SIGURG"
        else:
            self._before = signal.signal(signal.SIGURG, self._note)
            # Calls of the system that it interrupts go on by themselves.
            signal.siginterrupt(signal.SIGURG, False)
            self._last = time.perf_counter()
            self._is_running = True
            start_ticks(signal.SIGURG, INTERVAL)

    def stop(self) -> None:
        """End, and leave the signal as it was."""
        if not self._is_running:
            return

        self._is_running = False
        stop_ticks = _native("stop_ticks")
        assert stop_ticks is not None
        stop_ticks()
        if signal.getsignal(signal.SIGURG) == self._note:
            signal.signal(signal.SIGURG, self._before)  # pyright: ignore

    def _note(self, number: int, frame: FrameType | None) -> None:
        try:
            now = time.perf_counter()
            stack: list[Position] = []
            while frame is not None and len(stack) < _MAX_FRAMES:
                stack.append(Position(frame.f_code, frame.f_lasti))
                frame = frame.f_back
            self._recent.append(_Sample(now, now - self._last, tuple(stack)))
            self._last = now
            if len(self._recent) > _MAX_RECENT:
                self._add_up(_MAX_RECENT // 2)
        except Exception:  # of no memory, say: it must not end the program
            return

    def _add_up(self, n: int) -> None:
        """Add the oldest samples to the seconds of their stacks."""
        for sample in self._recent[:n]:
            self._seconds[sample.stack] += sample.seconds
        del self._recent[:n]

    def take_back(self, seconds: float) -> None:
        """Forget the samples of the last seconds, whose time is known exactly."""
        now = time.perf_counter()
        while self._recent and self._recent[-1].time > now - seconds:
            self._recent.pop()
        self._last = now

    def seconds(self) -> "collections.Counter[Stack]":
        """The seconds of each stack up to now."""
        self._add_up(len(self._recent))
        return self._seconds


def _native(name: str):  # type: ignore[no-untyped-def]
    """A function of the C engine, which is not to import JAX; `None` without it."""
    try:
        from eqx_fastjit import _native as module  # pyright: ignore
    except ImportError:
        return None
    return getattr(module, name, None)
