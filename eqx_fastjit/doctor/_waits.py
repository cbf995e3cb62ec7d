"""Records the lines where Python was blocked by the device.

`float(x)`, `x.item()`, `np.asarray(x)`, `print(x)`, `jax.device_get` and
`block_until_ready` all block until the device has finished. In a loop, Python cannot
prepare the next step meanwhile. While a program is watched, these are replaced by
functions that measure the time; a jitted call that does not block is left alone.
"""

import dataclasses
import functools as ft
import threading
import time
from collections.abc import Callable
from typing import Any

from ._sites import expression_at, Line, line_at, user_frame


CALL = "a jitted call"
_BLOCK = ".block_until_ready()"
# Functions that read the value of an array, or wait for it.
_METHODS = {
    "__array__": "np.asarray()",
    "__bool__": "bool()",
    "__complex__": "complex()",
    "__float__": "float()",
    "__format__": "format()",
    "__index__": "an index",
    "__int__": "int()",
    "__repr__": "repr()",
    "__str__": "str()",
    "block_until_ready": _BLOCK,
    "item": ".item()",
    "tolist": ".tolist()",
}
# Shorter waits do not count: the device was done, and the value was only copied.
_SHORTEST = 50e-6


@dataclasses.dataclass
class Waiting:
    """All waits of one line of source. Times are in seconds."""

    line: Line
    # What waited: `float()` or the like; `CALL` if a jitted call blocks by itself.
    what: str
    # The source of that expression; empty if it is not known.
    expression: str = ""
    count: int = 0
    waited: float = 0.0
    # The most that could have been saved; see `Waits`.
    lost: float = 0.0
    first: float = 0.0
    last: float = 0.0


class _Here(threading.local):
    inside = False
    # When the last wait was over; what had been compiled by then.
    last_end: float | None = None
    compiled = 0.0


class Waits:
    """Notes each wait of the program for the device.

    Of a wait, that part counts as lost in which Python could have worked: without it,
    Python would have gone on with what it did between this wait and the one before. So
    the loss is the shorter of the two, the wait and the time in between (less what was
    spent on compiling). It is an upper bound: the value may be needed at once.
    """

    def __init__(self, compiled: Callable[[], float]):
        self.by_call: dict[tuple[Line, str, str], Waiting] = {}
        # What cannot be watched in this JAX.
        self.missing: list[str] = []
        # Set while the doctor itself waits for something.
        self.paused = False
        self._compiled = compiled
        self._here = _Here()
        self._lock = threading.Lock()
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        """Begin, in a process that has imported JAX."""
        import jax
        import numpy as np

        for cls in jax.Array.__subclasses__():
            for name, what in _METHODS.items():
                if callable(vars(cls).get(name)):
                    self._wrap(cls, name, what)
        if not self._undo:
            self.missing.append("waits for values (float(x), x.item(), print(x))")
        for name in ("block_until_ready", "device_get"):
            self._wrap(jax, name, f"jax.{name}()")
        # NumPy reads the memory of an array on the host without any call of ours.
        for name in ("asarray", "array"):
            self._wrap(np, name, f"np.{name}()", only=jax.Array)

    def stop(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _wrap(self, owner: Any, name: str, what: str, only: type | None = None) -> None:
        old = vars(owner)[name]
        setattr(owner, name, self._timed(old, what, only))
        self._undo.append(lambda: setattr(owner, name, old))

    def _timed(
        self, function: Callable[..., Any], what: str, only: type | None = None
    ) -> Callable[..., Any]:
        here, clock = self._here, time.perf_counter

        def timed(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            others = only is not None and not (args and isinstance(args[0], only))
            if here.inside or self.paused or others:
                return function(*args, **kwargs)
            here.inside = True
            start = clock()
            try:
                return function(*args, **kwargs)
            finally:
                end = clock()
                here.inside = False
                if end - start >= _SHORTEST:
                    self._note(start, end, what)

        for name in ft.WRAPPER_ASSIGNMENTS:
            try:  # what nanobind makes has odd names
                setattr(timed, name, getattr(function, name))
            except (AttributeError, TypeError):
                pass
        return timed

    def _note(self, start: float, end: float, what: str) -> None:
        frame = user_frame()
        here = self._here
        compiled = self._compiled()
        waited, lost = end - start, 0.0
        if here.last_end is not None:
            between = start - here.last_end - (compiled - here.compiled)
            lost = max(0.0, min(waited, between))
        here.last_end, here.compiled = end, compiled
        if frame is None:
            return
        line = line_at(frame)
        expression = expression_at(frame.f_code, frame.f_lasti)
        # With NumPy arrays or host callbacks a call waits as if the user had asked.
        if what == _BLOCK and expression and "block_until_ready" not in expression:
            what = CALL
        with self._lock:
            key = (line, what, expression)
            waiting = self.by_call.setdefault(key, Waiting(*key, first=start))
            waiting.count += 1
            waiting.waited += waited
            waiting.lost += lost
            waiting.last = end
