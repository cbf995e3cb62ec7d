"""`guard`: an error or a warning when a function is traced in vain, or too often."""

import collections
import contextlib
import copy
import threading
import warnings
from typing import Any

from eqx_fastjit._facts import FunctionInfo
from eqx_fastjit._jit import jitted_function

from ._words import plural, show_place
from .record._events import Event, history, unwatch, watch
from .record._why import line_of, title_of
from .show._reasons import AGAIN, reason_of
from .show._text import part_text


class RetraceError(RuntimeError):
    """A function was traced to a program that it had, or too often for a guard."""


class RetraceWarning(UserWarning):
    """The warning of a guard with `warn=True`."""


class guard(contextlib.ContextDecorator):
    """Raise an error at a call that compiles a program that the function had.

    This is a context manager, `with guard(step): ...`, and a decorator, for which each
    call of the decorated function is one context. It applies to the thread that
    entered it.

    **Arguments:**

    - `f`: a function or method wrapped by `eqx_fastjit.filter_jit`. The guard only
        applies to this function, which is called as before.
    - `max_traces`: raise an error if a jitted function is traced more often, whatever
        for. `0` asserts that everything has been called before. Functions created by
        the same line (a lambda in a loop) count as one.
    - `warn`: issue a `RetraceWarning` for each, rather than an error.

    Raises `RetraceError` with the doctor's row before the program is compiled, or with
    `max_traces` before the function is traced, so that it can be called again later.
    Raises `ValueError` if `max_traces` is not a number of traces, and `TypeError` if
    `f` was not wrapped by `eqx_fastjit`.
    """

    def __init__(
        self, f: Any = None, /, *, max_traces: int | None = None, warn: bool = False
    ):
        limit: Any = max_traces
        if limit is not None and not (isinstance(limit, int) and limit >= 0):
            raise ValueError(f"guard(max_traces={limit!r}): expected 0 or more.")
        self._key = None if f is None else _key(jitted_function(f).info)
        self._limit = max_traces
        self._warn = warn
        # The thread that has entered it.
        self._thread: int | None = None

    def _recreate_cm(self) -> "guard":
        # For each call of a decorated function, which may call itself.
        again = copy.copy(self)
        again._thread = None
        return again

    def __enter__(self) -> "guard":
        if self._thread is not None:
            raise RuntimeError(
                "This guard is entered already. Of contexts in one another, each needs "
                "a guard of its own."
            )

        self._counts = collections.Counter[Any]()
        self._thread = threading.get_ident()
        when = "compiling" if self._limit is None else "starting"
        watch(**{when: self._check})
        return self

    def __exit__(self, *exc_info: object) -> None:
        unwatch(self._check)
        self._thread = None

    def _check(self, event: Event) -> None:
        """Refuse what is about to be compiled, or traced, if it is not to be."""
        key = _key(event.function)
        if self._thread != threading.get_ident() or self._key not in (None, key):
            return
        self._counts[key] += 1
        if self._limit is not None and self._counts[key] <= self._limit:
            return

        reason = reason_of(event, history(event.function))
        if self._limit is not None:
            what = f"may be traced at most {plural(self._limit, 'time')} here."
        elif reason.cause == AGAIN:
            what = "is compiled for a program that it had."
        else:
            return

        why = [f"{reason.cause}, at {show_place(line_of(event))}"]
        why += map(part_text, reason.parts)
        message = "\n  ".join([f"{title_of(event.function)} {what}", *why])
        if not self._warn:
            raise RetraceError(message)

        file, line = event.frames[0][:2] if event.frames else ("<unknown>", 1)
        # At the call's own line, which Python cannot find from here.
        warnings.warn_explicit(message, RetraceWarning, file, line)


def _key(function: FunctionInfo) -> Any:
    # Functions made by one line count as one, or a lambda in a loop would pass.
    return function.number if function.place is None else function.key()
