"""`guard`: an error or a warning when a function is traced too often."""

import collections
import contextlib
import contextvars
import dataclasses
import os
import warnings
from typing import Any

from eqx_fastjit import _events
from eqx_fastjit._events import Event, FunctionInfo
from eqx_fastjit._jit import jitted_function

from ._explain import explain_event
from ._words import plural, show_seconds


class RetraceError(RuntimeError):
    """A function was traced more often, or compiled for longer, than a guard allows."""


class RetraceWarning(UserWarning):
    """The warning of a guard with `warn=True`."""


@dataclasses.dataclass
class _Limits:
    """What a guard allows, and what has been traced since it is in force."""

    max_traces: int | None
    max_seconds: float | None = None
    warn: bool = False
    # Of one function alone, if given.
    function: FunctionInfo | None = None
    # Who asked for it.
    origin: str = "here"
    counts: Any = dataclasses.field(
        default_factory=collections.Counter[Any], init=False
    )
    seconds: float = dataclasses.field(default=0.0, init=False)

    def starting(self, event: Event) -> None:
        """Count a trace that is about to begin."""
        limit = self.max_traces
        if limit is None or not self._concerns(event):
            return
        key = _key(event.function)
        self.counts[key] += 1
        if self.counts[key] > limit:
            self._tell(
                f"{event.function.title()} may be traced at most "
                f"{plural(limit, 'time')} {self.origin}.\n{explain_event(event)}",
                event,
            )

    def complete(self, event: Event) -> None:
        """Count the seconds of an event."""
        limit = self.max_seconds
        if limit is None or not self._concerns(event):
            return
        self.seconds += event.own_seconds
        if self.seconds > limit:
            self._tell(
                f"Tracing and compiling may take at most {show_seconds(limit)} here, "
                f"and has taken {show_seconds(self.seconds)}, including "
                f"{event.function.title()}.\n{explain_event(event)}",
                event,
            )

    def _concerns(self, event: Event) -> bool:
        function = self.function
        return function is None or _key(function) == _key(event.function)

    def _tell(self, message: str, event: Event) -> None:
        if not self.warn:
            raise RetraceError(message)
        file, line = ("<unknown>", 1)
        if event.frames:
            file, line = event.frames[0][:2]
        # At the call's own line, which Python cannot find from here.
        warnings.warn_explicit(message, RetraceWarning, file, line)


def _key(function: FunctionInfo) -> Any:
    # Functions made by one line count as one, or a lambda in a loop would pass.
    return function.number if function.place is None else function.key()


# The guards around the running code, in this thread and context.
_active: contextvars.ContextVar[tuple[_Limits, ...]] = contextvars.ContextVar(
    "eqx_fastjit_guards", default=()
)


def _starting(event: Event) -> None:
    for limits in _active.get():
        limits.starting(event)


def _complete(event: Event) -> None:
    for limits in _active.get():
        limits.complete(event)


def _subscribe() -> None:
    """From the first guard on. What is not traced never gets here."""
    if _starting not in _events.starting:
        _events.starting.append(_starting)
        _events.observers.append(_complete)


_VARIABLE = "EQX_FASTJIT_MAX_TRACES"


def guard_from_environment() -> None:
    """Start the guard of `EQX_FASTJIT_MAX_TRACES`, for all threads of the process.

    `8` for at most eight traces of each function, `8,warn` for a warning at each
    further one. Raises `ValueError` for anything else.
    """
    text = os.environ.get(_VARIABLE, "")
    number, comma, mode = text.partition(",")
    if not number.isdecimal() or (comma and mode != "warn"):
        raise ValueError(
            f"{_VARIABLE}={text!r}: expected a number of traces, such as 8, or 8,warn "
            "for a warning in place of an error."
        )
    origin = f"({_VARIABLE}={text})"
    limits = _Limits(int(number), warn=mode == "warn", origin=origin)
    _events.starting.append(limits.starting)


class guard(contextlib.ContextDecorator):
    """Raise an error at a call that traces too often.

    This is a context manager, `with guard(step, max_traces=1): ...`, and a decorator,
    for which each call of the decorated function is one context. It applies to the
    thread that entered it. The environment variable `EQX_FASTJIT_MAX_TRACES=8` (or
    `8,warn`) sets a limit for each function of a process.

    **Arguments:**

    - `f`: a function or method wrapped by `eqx_fastjit.filter_jit`. The guard only
        applies to this function, which is called as before.
    - `max_traces`: how often each jitted function may be traced. `0` asserts that
        everything has been called before. Functions created by the same line (a lambda
        in a loop) count as one.
    - `max_seconds`: how many seconds all tracing and compiling may take.
    - `warn`: issue a `RetraceWarning` for each trace over the limit, rather than an
        error.

    Raises `RetraceError` with an explanation. For `max_traces`, this is before the
    function is traced, so that it can be called again later. For `max_seconds`, it is
    after the function was compiled. Raises `ValueError` if neither is given, and
    `TypeError` if `f` was not wrapped by `eqx_fastjit`.
    """

    def __init__(
        self,
        f: Any = None,
        /,
        *,
        max_traces: int | None = None,
        max_seconds: float | None = None,
        warn: bool = False,
    ):
        if max_traces is None and max_seconds is None:
            raise ValueError("guard() needs `max_traces` or `max_seconds`.")
        limits: dict[str, Any] = {"max_traces": max_traces, "max_seconds": max_seconds}
        for name, x in limits.items():
            if x is not None and not (isinstance(x, int | float) and x >= 0):
                raise ValueError(f"guard({name}={x!r}): expected 0 or more.")
        function = None if f is None else jitted_function(f).info
        self._limits = _Limits(max_traces, max_seconds, warn, function)
        self._tokens: list[Any] = []
        _subscribe()

    def _recreate_cm(self) -> "guard":
        # For each call of a decorated function, which may call itself.
        other = object.__new__(guard)
        other._limits, other._tokens = self._limits, []
        return other

    def __enter__(self) -> "guard":
        entry = dataclasses.replace(self._limits)
        self._tokens.append(_active.set((*_active.get(), entry)))
        return self

    def __exit__(self, *exc_info: object) -> None:
        _active.reset(self._tokens.pop())
