"""Where Python is: the stack of the main thread, every few milliseconds.

A thread of the C engine sends a signal to the main thread (`csrc/ticks.c`). Its handler
notes the stack, and the seconds since the note before: so a stack stands for the
seconds up to it, and nearly all of a run is in some stack. Pyinstrument is asked at
each call of a Python function instead, which slows JAX's tracing.

Nothing here imports JAX, since a program is sampled before it does.
"""

import collections
import faulthandler
import importlib
import os
import signal
import threading
import time
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any, NamedTuple


# Seconds between two samples.
INTERVAL = 0.01
# The most frames of a stack that are noted, innermost first.
_MAX_FRAMES = 300
# After so many samples the older half is added up. (Events set aside the last ones.)
_MAX_RECENT = 1 << 13
# From a signal to its handler. On the CPU for longer than the first: Python was in C,
# and computed, as to call an operation of JAX takes less. Off it for longer than the
# second: it waited there for a thread that computes.
_COMPUTED, _WAITED = 150e-6, 30e-6
# Between these it cannot be told: other programs, and threads of Python's, keep it
# waiting for as long.
_OTHERS_LEAST, _OTHERS_MOST = 2.5e-3, 10e-3

# Of frames in these, only the function is noted: stacks are then few.
_LIBRARIES = (
    os.path.dirname(os.__file__) + os.sep,
    os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep,
    "<frozen ",
)


class Position:
    """Where a frame is: its code, and the instruction; -1 in a library.

    `position_of` makes one for each: to compare code, or to hash it, takes long.
    """

    __slots__ = ("code", "instruction")

    def __init__(self, code: CodeType, instruction: int):
        self.code = code
        self.instruction = instruction


# By the `id` of the code, which they keep, and the instruction; and the most of them.
_positions: dict[tuple[int, int], Position] = {}
_MAX_POSITIONS = 1 << 16


def position_of(code: CodeType, instruction: int) -> Position:
    """The position of an instruction."""
    if len(_positions) > _MAX_POSITIONS:
        _positions.clear()
    return _positions.setdefault((id(code), instruction), Position(code, instruction))


def _position_in(frame: FrameType) -> Position:
    """Where a frame is."""
    code = frame.f_code
    known = _positions.get((id(code), -1))
    if known is not None:
        return known
    file = code.co_filename
    is_installed = "site-packages" in file or "dist-packages" in file
    is_library = is_installed or file.startswith(_LIBRARIES)
    return position_of(code, -1 if is_library else frame.f_lasti)


class Stack(NamedTuple):
    """Where Python is: innermost first.

    And whether it was in C for a while; and whether it waited, rather than computed.
    """

    positions: tuple[Position, ...]
    is_in_c: bool = False
    is_waiting: bool = False


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
        self._native = _native_engine()
        # Why there are no samples, if there are none.
        self.why_not = ""
        self._is_running = False
        self._before: object = None
        self._last = 0.0
        self.count = 0
        self._recent: list[_Sample] = []
        self._seconds = collections.defaultdict[Stack, float](float)
        self._known = self._seconds.copy()

    def start(self) -> None:
        """Begin. If it cannot, `why_not` says why."""
        if self._native is None:
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
            try:
                _make_stack_of_handlers()
                self._native.start_ticks(signal.SIGURG, INTERVAL)
            except (OSError, RuntimeError, MemoryError) as e:
                self.why_not, self._is_running = repr(e), False
                signal.signal(signal.SIGURG, self._before)  # pyright: ignore

    def stop(self) -> None:
        """End, and leave the signal as it was."""
        if not self._is_running:
            return

        self._is_running = False
        self._native.stop_ticks()
        if signal.getsignal(signal.SIGURG) == self._note:
            signal.signal(signal.SIGURG, self._before)  # pyright: ignore

    def _note(self, number: int, frame: FrameType | None) -> None:
        try:
            now = time.perf_counter()
            seconds, computed = self._native.seconds_since_tick()
            waited = seconds - computed
            is_of_others = _OTHERS_LEAST < waited < _OTHERS_MOST
            is_in_c = computed > _COMPUTED or (waited > _WAITED and not is_of_others)
            is_waiting = waited > max(_WAITED, computed)
            positions: list[Position] = []
            while frame is not None and len(positions) < _MAX_FRAMES:
                positions.append(_position_in(frame))
                frame = frame.f_back
            stack = Stack(tuple(positions), is_in_c, is_waiting)
            self._recent.append(_Sample(now, now - self._last, stack))
            self._last = now
            self.count += 1
            if len(self._recent) > _MAX_RECENT:
                self._add_up(_MAX_RECENT // 2)
        except Exception:  # of no memory, say: it must not end the program
            return

    def _add_up(self, n: int) -> None:
        """Add the oldest samples to the seconds of their stacks."""
        oldest = self._recent[:n]
        del self._recent[:n]  # first, as a signal may come while they are added
        for sample in oldest:
            self._seconds[sample.stack] += sample.seconds

    def on_event(self, event: Any, since: float) -> None:
        """Set aside the samples of a compilation, whose seconds are known exactly.

        It ended `since` seconds ago.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        now = time.perf_counter()
        begun = now - since - event.elapsed
        while self._recent and self._recent[-1].time > begun:
            sample = self._recent.pop()
            self._known[sample.stack] += sample.seconds
        self._last = now

    def seconds(self) -> Mapping[Stack, float]:
        """The seconds of each stack up to now, but for those that were set aside."""
        self._add_up(len(self._recent))
        return self._seconds

    def set_aside(self) -> Mapping[Stack, float]:
        """The seconds of each stack that was set aside."""
        return self._known


def _make_stack_of_handlers() -> None:
    """Have handlers of Python's in this thread run on a stack of their own.

    The system writes a frame where the stack pointer is, and while oneDNN multiplies
    matrices, that is in other memory. `faulthandler` makes a stack, and leaves it.
    """
    faulthandler.register(signal.SIGURG, file=2)
    faulthandler.unregister(signal.SIGURG)  # the handler before is back


def _native_engine() -> Any:
    """The C engine, which does not import JAX; `None` where it has no ticks."""
    try:
        engine = importlib.import_module("eqx_fastjit._native")
    except ImportError:
        return None
    return engine if hasattr(engine, "start_ticks") else None
