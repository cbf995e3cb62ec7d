"""What blocks: the lines at which Python waited for the device.

`float(x)`, `x.item()`, `print(x)`, `np.asarray(x)` and `block_until_ready` need the
value of an array, and wait until the device has it. In a loop, Python cannot prepare
the next step meanwhile. Nothing is watched until a `Waits` is entered.
"""

import contextlib
import dataclasses
import functools
import linecache
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

import jax

from eqx_fastjit._blocking import has_host_callbacks
from eqx_fastjit._engine import engine_module
from eqx_fastjit._facts import is_written_by_user, Place

from ._equations import trace_of
from ._events import Event, unwatch, watch
from ._private import hook_waits


# What waits if a jitted call does not return before its result is ready: because of a
# host callback; or else of large NumPy arguments, or under `equinox.filter_jit`.
CALLBACK = "a jitted call with a host callback"
JITTED_CALL = "a jitted call that blocks"
# Shorter waits do not count: the device was done, and the value was only copied.
_SHORTEST = 50e-6
_MAX_EXPRESSION = 60


@dataclasses.dataclass
class Wait:
    """All waits of one expression in a line of source. Times are in seconds."""

    place: Place
    # The source of the expression, such as `float(loss)`; or one of those above.
    what: str
    count: int = 0
    seconds: float = 0.0


class _Here(threading.local):
    inside = False


class Waits(contextlib.ExitStack):
    """Within this context, notes each wait of the program for the device."""

    def __init__(self) -> None:
        super().__init__()
        # Functions that this version of JAX does not have: waits in them are missing.
        self.missing: list[str] = []
        self._found: dict[tuple[Place, str], Wait] = {}
        self._here = _Here()
        self._lock = threading.Lock()
        # Specializations that have host callbacks.
        self._calling_back: weakref.WeakSet[Any] = weakref.WeakSet()

    def __enter__(self) -> Self:
        watch(self._on_event)
        self.callback(unwatch, self._on_event)
        self.missing = hook_waits(self._timed, self)
        return self

    def found(self) -> list[Wait]:
        """The waits until now, the longest first."""
        with self._lock:
            return sorted(self._found.values(), key=lambda wait: -wait.seconds)

    def calls_back(self) -> bool:
        """Whether the function that is being called has a host callback."""
        active = engine_module().active()
        return active is not None and active.flat in self._calling_back

    def _on_event(self, event: Event) -> None:
        # What is only a part of another function is never lowered by itself.
        traced = trace_of(event) if event.compile else None
        if traced is not None and has_host_callbacks(traced):
            self._calling_back.add(engine_module().active().flat)

    def _timed(self, function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        here, clock = self._here, time.perf_counter

        def timed(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            others = kind == "numpy" and not (args and isinstance(args[0], jax.Array))
            if here.inside or others:
                return function(*args, **kwargs)
            here.inside, start = True, clock()
            try:
                return function(*args, **kwargs)
            finally:
                here.inside, end = False, clock()
                if end - start >= _SHORTEST:
                    self._note(end - start, kind)

        with contextlib.suppress(TypeError):  # what nanobind makes has odd names
            functools.update_wrapper(timed, function)
        return timed

    def _note(self, seconds: float, kind: str) -> None:
        # The innermost frame of the program itself, and the function that it called.
        frame, called = sys._getframe(1), ""
        while not is_written_by_user(frame.f_code):
            if frame.f_back is None:
                return
            called, frame = frame.f_code.co_name, frame.f_back
        code = frame.f_code
        place = Place(code.co_filename, frame.f_lineno, code.co_qualname)
        what = _expression_at(frame)
        # The program called neither `block_until_ready` nor a function that did.
        if kind == "blocks" and called not in ("timed", "block_until_ready"):
            specialization = engine_module().active()
            flat = None if specialization is None else specialization.flat
            what = CALLBACK if flat in self._calling_back else JITTED_CALL
        with self._lock:
            wait = self._found.setdefault((place, what), Wait(place, what))
            wait.count += 1
            wait.seconds += seconds


def _expression_at(frame: FrameType) -> str:
    """The source of the expression that a frame is at, in a line."""
    positions = list(frame.f_code.co_positions())
    first, last, start, end = positions[frame.f_lasti // 2]
    if first is None or last is None:
        return "the value of an array"
    file = frame.f_code.co_filename
    # Columns count bytes.
    lines = [linecache.getline(file, n).encode() for n in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    text = " ".join(b"".join(lines).decode(errors="replace").split())
    if len(text) > _MAX_EXPRESSION:
        text = f"{text[: _MAX_EXPRESSION - 3]}..."
    return text or "the value of an array"
