"""`guard`: an error or a warning when a function is traced too often."""

import contextlib
import contextvars
import dataclasses
import os
import warnings
from collections import Counter
from typing import Any

from eqx_fastjit import _record
from eqx_fastjit._compat import hide_from_tracebacks
from eqx_fastjit._jit import jitted_function
from eqx_fastjit._record import FunctionInfo, Trace
from eqx_fastjit._units import plural, show_seconds

from ._explain import arguments_text, explain_trace


hide_from_tracebacks(__file__)


class RetraceError(RuntimeError):
    """A function was traced more often, or compiled for longer, than a guard allows."""


# The guards around the running code, in this thread and context.
_active: contextvars.ContextVar[tuple["_Guarding", ...]] = contextvars.ContextVar(
    "eqx_fastjit_guards", default=()
)


class RetraceWarning(UserWarning):
    """The warning of a guard with `warn=True`."""


@dataclasses.dataclass
class _Guarding:
    """What a guard allows, and what has been traced since it is in force."""

    max_traces: int | None
    max_seconds: float | None = None
    warn: bool = False
    # Of one function alone, if given.
    function: FunctionInfo | None = None
    # Who asked for it.
    origin: str = "here"
    counts: Any = dataclasses.field(default_factory=Counter[Any], init=False)
    seconds: float = dataclasses.field(default=0.0, init=False)

    def concerns(self, trace: Trace) -> bool:
        """Whether it is about this function, or about one made by the same line."""
        function = self.function
        if function is None or trace.function.number == function.number:
            return True
        return function.place is not None and trace.function.key() == function.key()

    def before(self, trace: Trace, _: Any = None) -> None:
        limit = self.max_traces
        if limit is None or not self.concerns(trace):
            return
        key = _key(trace)
        self.counts[key] += 1
        if self.counts[key] > limit:
            self._tell(
                f"{trace.title()} may be traced at most {plural(limit, 'time')} "
                f"{self.origin}.\n{_why(trace)}",
                trace,
            )

    def after(self, trace: Trace) -> None:
        limit = self.max_seconds
        if limit is None or not self.concerns(trace):
            return
        self.seconds += trace.seconds - trace.nested
        if self.seconds > limit:
            self._tell(
                f"Tracing and compiling may take at most {show_seconds(limit)} here, "
                f"and has taken {show_seconds(self.seconds)}, including "
                f"{trace.title()}.\n{_why(trace)}",
                trace,
            )

    def _tell(self, message: str, trace: Trace) -> None:
        if not self.warn:
            raise RetraceError(message)
        site = trace.site
        file, line = ("<unknown>", 1) if site is None else (site.file, site.line)
        # At the call's own line, which Python cannot find from here.
        warnings.warn_explicit(message, RetraceWarning, file, line)


def _key(trace: Trace) -> Any:
    # Functions made by one line count as one, or a lambda in a loop would pass.
    function = trace.function
    return trace.key() if function.place is not None else function.number


def _why(trace: Trace) -> str:
    key = _key(trace)
    earlier = [t for t in tuple(_record.traces) if _key(t) == key and t is not trace]
    if (explanation := explain_trace(trace, earlier)) is not None:
        return f"  called at {trace.site or '?'}\n{explanation.reason()}"
    return (
        f"  It was called at {trace.site or '?'} for the first time, with "
        f"{arguments_text(trace.entries)}. Call it once, or `warmup` it, before the "
        "guard."
    )


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
    guarding = _Guarding(int(number), warn=mode == "warn", origin=origin)
    _record.before.append(guarding.before)


def _before(trace: Trace, _: Any) -> None:
    for guarding in _active.get():
        guarding.before(trace)


def _after(trace: Trace) -> None:
    for guarding in _active.get():
        guarding.after(trace)


# From the import of `eqx_fastjit.insight` on, and only where something is traced.
_record.before.append(_before)
_record.after.append(_after)


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
        everything has been warmed up. Functions created by the same line (a lambda in a
        loop) count as one.
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
        function = None if f is None else jitted_function(f).history.info
        self._limits = _Guarding(max_traces, max_seconds, warn, function)
        self._tokens: list[Any] = []

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
