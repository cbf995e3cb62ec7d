"""`guard`: an error at the call that traces once too often."""

import collections
import contextlib
import contextvars
import threading
from typing import Any

from eqx_fastjit import _record
from eqx_fastjit._record import Trace
from eqx_fastjit._units import plural, show_seconds

from ._explain import arguments_text, explain_trace


class RetraceError(RuntimeError):
    """A function was traced more often, or compiled for longer, than a guard allows."""


# The guards around the running code, in this thread and context.
_active: contextvars.ContextVar[tuple["_Guarding", ...]] = contextvars.ContextVar(
    "eqx_fastjit_guards", default=()
)
_lock = threading.Lock()
_entered = 0


class _Guarding:
    """A guard in force: what has been traced since."""

    def __init__(self, max_traces: int | None, max_seconds: float | None):
        self.max_traces = max_traces
        self.max_seconds = max_seconds
        self.counts: collections.Counter[Any] = collections.Counter()
        self.seconds = 0.0

    def before(self, trace: Trace) -> None:
        key = _key(trace)
        self.counts[key] += 1
        limit = self.max_traces
        if limit is not None and self.counts[key] > limit:
            raise RetraceError(
                f"{trace.title()} was to be traced at most "
                f"{plural(limit, 'time')} here.\n{_why(trace)}"
            )

    def after(self, trace: Trace) -> None:
        self.seconds += trace.seconds - trace.nested
        limit = self.max_seconds
        if limit is not None and self.seconds > limit:
            raise RetraceError(
                "Tracing and compiling was to take at most "
                f"{show_seconds(limit)} here, and took "
                f"{show_seconds(self.seconds)} with "
                f"{trace.title()}.\n{_why(trace)}"
            )


def _key(trace: Trace) -> Any:
    # Functions made by one line count as one, or a lambda in a loop would pass.
    function = trace.function
    return trace.key() if function.place is not None else function.number


def _why(trace: Trace) -> str:
    key = _key(trace)
    earlier = [t for t in tuple(_record.traces) if _key(t) == key and t is not trace]
    explanation = explain_trace(trace, earlier)
    if explanation is not None:
        return f"  called at {trace.site or '?'}\n{explanation.reason()}"
    return (
        f"  It was called at {trace.site or '?'} for the first time, with "
        f"{arguments_text(trace.entries)}. Call it once, or `warmup` it, before the "
        "guard."
    )


def _before(trace: Trace, _: Any) -> None:
    for guarding in _active.get():
        guarding.before(trace)


def _after(trace: Trace) -> None:
    for guarding in _active.get():
        guarding.after(trace)


class guard(contextlib.ContextDecorator):
    """Raise at the call that traces once too often.

    A context manager, `with guard(max_traces=1): ...`, and a decorator, for which each
    call of the decorated function is one such context. It holds for the thread that
    entered it.

    **Arguments:**

    - `max_traces`: how often each jitted function may be traced within. `0` for none at
        all, which says that everything is warmed up. Functions made by the same line (a
        lambda in a loop) count as one.
    - `max_seconds`: how many seconds all tracing and compiling within may take.

    Raises `RetraceError` with the explanation: for `max_traces` before the function is
    traced, so that it can be called again later; for `max_seconds` after it was
    compiled. `ValueError` if neither is given.
    """

    def __init__(
        self, *, max_traces: int | None = None, max_seconds: float | None = None
    ):
        if max_traces is None and max_seconds is None:
            raise ValueError("guard() needs `max_traces` or `max_seconds`.")
        limits: dict[str, Any] = {"max_traces": max_traces, "max_seconds": max_seconds}
        for name, value in limits.items():
            if value is not None and not (
                isinstance(value, int | float) and value >= 0
            ):
                raise ValueError(f"guard({name}={value!r}): expected 0 or more.")
        self._limits = max_traces, max_seconds
        self._tokens: list[Any] = []

    def _recreate_cm(self) -> "guard":
        # For each call of a decorated function, which may call itself.
        return guard(max_traces=self._limits[0], max_seconds=self._limits[1])

    def __enter__(self) -> "guard":
        global _entered
        with _lock:
            _entered += 1
            if _entered == 1:
                _record.before.append(_before)
                _record.after.append(_after)
        entry = _Guarding(*self._limits)
        self._tokens.append(_active.set((*_active.get(), entry)))
        return self

    def __exit__(self, *exc_info: object) -> None:
        global _entered
        _active.reset(self._tokens.pop())
        with _lock:
            _entered -= 1
            if _entered == 0:
                _record.before.remove(_before)
                _record.after.remove(_after)
