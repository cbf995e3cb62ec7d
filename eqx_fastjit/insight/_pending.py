"""What is being compiled right now, of each thread the outermost function.

JAX says when it begins to trace, lower or compile, and when it has ended. A compilation
that hangs says nothing else.
"""

import atexit
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

from eqx_fastjit._callables import place_of
from eqx_fastjit._engine import engine_module
from eqx_fastjit._facts import FunctionInfo, is_users, Place, STAGES, user_frames

from ._private import function_in_jit
from ._why import title_of
from ._words import show_seconds


# Seconds after which something is said for the first time; each time it is twice that.
_LATE = 30.0
# How often it is looked for.
_INTERVAL = 1.0
# The most seconds between two stages of one function.
_APART = 1.0


@dataclasses.dataclass
class Compilation:
    """A function that is being traced, lowered or compiled."""

    function: FunctionInfo
    frames: tuple[Place, ...]
    thread: str
    started: float  # seconds since the epoch
    began: float
    # Seconds after which it is late.
    late: float


class _Here(threading.local):
    """What JAX does in this thread."""

    depth = 0
    ended = 0.0
    compilation: Compilation | None = None


_here = _Here()
_pending: dict[int, Compilation] = {}
# Called as a function of this library begins, or as any other is about to be compiled.
_observers: list[Callable[[Compilation], None]] = []


def watch_beginnings(observer: Callable[[Compilation], None]) -> None:
    """From now on, tell an observer of each compilation that begins."""
    _listen()
    _observers.append(observer)


def _listen() -> None:
    if _on_begin not in _listening:
        _listening.append(_on_begin)
        jax.monitoring.register_scalar_listener(_on_begin)
        jax.monitoring.register_event_duration_secs_listener(_on_end)


_listening: list[Any] = []


def _on_begin(event: str, value: float, **told: Any) -> None:
    stage = STAGES.get(event)
    if stage is None:
        return
    _here.depth += 1
    if _here.depth > 1:
        return
    known, now = _here.compilation, time.monotonic()
    is_new = known is None or now - _here.ended > _APART
    active = engine_module().active()
    if is_new:
        function = active.flat.info if active else _other(told.get("fun_name", ""))
        thread = threading.current_thread().name
        known = _here.compilation = Compilation(
            function, user_frames(), thread, time.time(), now, _LATE
        )
    assert known is not None
    _pending[threading.get_ident()] = known
    # Of `jax.jit`, what is traced need not be compiled, and nothing says that it ended.
    if is_new if active else stage == "compile":
        for observer in tuple(_observers):
            observer(known)


def _on_end(event: str, duration_secs: float, **_: Any) -> None:
    if (stage := STAGES.get(event)) is None:
        return
    _here.depth = max(0, _here.depth - 1)
    if _here.depth == 0:
        _pending.pop(threading.get_ident(), None)
        _here.ended = time.monotonic()
        if stage == "compile":
            _here.compilation = None


def _other(name: str) -> FunctionInfo:
    """A function of `jax.jit`, or an operation."""
    place = place_of(function_in_jit())
    place = place if place is not None and is_users(place.file) else None
    name = name.partition(" at ")[0].removeprefix("jit(").rstrip(")")
    return FunctionInfo(name, name, place, number=0)


class SaysWhatIsLate:
    """A thread that says what has not ended for long, until it is stopped."""

    def __init__(self, say: Callable[[str], None]):
        self._say = say
        self._over = threading.Event()
        _listen()
        thread = threading.Thread(target=self._run, name="eqx_fastjit", daemon=True)
        thread.start()
        # A thread that prints while Python ends would end it otherwise.
        atexit.register(self.stop)
        self._thread = thread

    def stop(self) -> None:
        """Say nothing any more."""
        self._over.set()
        self._thread.join(timeout=1.0)
        atexit.unregister(self.stop)

    def _run(self) -> None:
        while not self._over.wait(_INTERVAL):
            for x in list(_pending.values()):
                seconds = time.monotonic() - x.began
                if seconds >= x.late and not self._over.is_set():
                    x.late *= 2
                    title, took = title_of(x.function), show_seconds(round(seconds))
                    with contextlib.suppress(Exception):  # of the program's own stderr
                        self._say(f"still compiling {title}, {took}")
