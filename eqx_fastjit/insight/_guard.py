"""`guard`: an error or a warning when a function is traced too often."""

import collections
import contextlib
import contextvars
import copy
import warnings
from typing import Any

from eqx_fastjit._facts import FunctionInfo
from eqx_fastjit._jit import jitted_function

from ._events import Event, unwatch, watch
from ._explain import explain_event
from ._why import title_of
from ._words import plural


class RetraceError(RuntimeError):
    """A function was traced more often than a guard allows."""


class RetraceWarning(UserWarning):
    """The warning of a guard with `warn=True`."""


class guard(contextlib.ContextDecorator):
    """Raise an error at a call that traces too often.

    This is a context manager, `with guard(step, max_traces=1): ...`, and a decorator,
    for which each call of the decorated function is one context. It applies to the
    thread that entered it.

    **Arguments:**

    - `f`: a function or method wrapped by `eqx_fastjit.filter_jit`. The guard only
        applies to this function, which is called as before.
    - `max_traces`: how often each jitted function may be traced. `0` asserts that
        everything has been called before. Functions created by the same line (a lambda
        in a loop) count as one.
    - `warn`: issue a `RetraceWarning` for each trace over the limit, rather than an
        error.

    Raises `RetraceError` with an explanation before the function is traced, so that it
    can be called again later. Raises `ValueError` if `max_traces` is not a number of
    traces, and `TypeError` if `f` was not wrapped by `eqx_fastjit`.
    """

    def __init__(self, f: Any = None, /, *, max_traces: int, warn: bool = False):
        limit: Any = max_traces
        if not (isinstance(limit, int) and limit >= 0):
            raise ValueError(f"guard(max_traces={limit!r}): expected 0 or more.")
        self._key = None if f is None else _key(jitted_function(f).info)
        self._limit = max_traces
        self._warn = warn
        self._counts: collections.Counter[Any] = collections.Counter()

    def _recreate_cm(self) -> "guard":
        # For each call of a decorated function, which may call itself.
        return copy.copy(self)

    def __enter__(self) -> "guard":
        self._counts = collections.Counter[Any]()
        self._token = _active.set((*_active.get(), self))
        watch(starting=self._starting)
        return self

    def __exit__(self, *exc_info: object) -> None:
        unwatch(self._starting)
        _active.reset(self._token)

    def _starting(self, event: Event) -> None:
        """Count a trace that is about to begin."""
        key = _key(event.function)
        if self._key not in (None, key) or self not in _active.get():
            return
        self._counts[key] += 1
        if self._counts[key] <= self._limit:
            return
        message = (
            f"{title_of(event.function)} may be traced at most "
            f"{plural(self._limit, 'time')} here.\n{explain_event(event)}"
        )
        if not self._warn:
            raise RetraceError(message)
        file, line = event.frames[0][:2] if event.frames else ("<unknown>", 1)
        # At the call's own line, which Python cannot find from here.
        warnings.warn_explicit(message, RetraceWarning, file, line)


def _key(function: FunctionInfo) -> Any:
    # Functions made by one line count as one, or a lambda in a loop would pass.
    return function.number if function.place is None else function.key()


# The guards around the running code, in this thread and context.
_active: contextvars.ContextVar[tuple[guard, ...]] = contextvars.ContextVar(
    "eqx_fastjit_guards", default=()
)
