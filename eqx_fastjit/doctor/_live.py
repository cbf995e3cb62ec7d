"""Logs each compilation as it happens, by the logger "eqx_fastjit".

A line says which function was compiled, by which line of the program, why, which leaf
was not as before, and how long it took. Nothing here runs unless something is traced or
compiled, and unless the logger is enabled for it: `EQX_FASTJIT_LOG` does that, and so
does `logging.getLogger("eqx_fastjit").setLevel("INFO")`.
"""

import functools as ft
import itertools
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from eqx_fastjit import _record
from eqx_fastjit._record import logger, Trace
from eqx_fastjit._units import show_seconds

from ._plain import Compile, PlainJits
from ._sites import frames, Line, package_of, shorten, user_line


_INSIGHT = os.path.join(os.path.dirname(os.path.dirname(__file__)), "insight") + os.sep

_LEVELS = {"compiles": logging.INFO, "all": logging.DEBUG}
# Earlier traces that a new one is compared with.
_COMPARED = 32
# Differences that are shown in a line.
_SHOWN = 3
# Seconds after which a running compilation is announced; then twice that, and so on.
# Otherwise, the program would seem to hang.
_LONG = 10.0
# An operation outside of jit takes some 20 ms, and there are dozens of them. In
# seconds, the time above which one has its own line.
_LONG_OPERATION = 0.5


class _Stderr(logging.Handler):
    """Writes to stderr, unless the program has a handler of its own that does."""

    def emit(self, record: logging.LogRecord) -> None:
        for handler in logging.getLogger().handlers:
            if logger.propagate and handler.level <= record.levelno:
                return
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def log_from_environment() -> None:
    """Start logging as `EQX_FASTJIT_LOG` says. Raises `ValueError` if it is invalid."""
    text = os.environ.get("EQX_FASTJIT_LOG", "")
    if text in ("", "off", "0") or any(isinstance(h, _Stderr) for h in logger.handlers):
        return
    if text not in _LEVELS:
        raise ValueError(
            f"EQX_FASTJIT_LOG={text!r}: expected one of {', '.join(_LEVELS)}, off."
        )
    handler = _Stderr()
    line = "[%(asctime)s eqx_fastjit] %(message)s"
    handler.setFormatter(logging.Formatter(line, "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(_LEVELS[text])
    _record.before.append(_on_begin)
    _record.after.append(_on_end)
    if (plain := PlainJits.started) is None:
        plain = PlainJits(keep=False)
        plain.start()
    plain.on_compile = log_compile


# --- functions of ours ---------------------------------------------------------------


def _never_raises(log: Callable[[Any], None]) -> Callable[[Any], None]:
    """Logging must not make a call fail."""

    @ft.wraps(log)
    def logs(what: Any) -> None:
        try:
            log(what)
        except Exception as e:
            kind = type(e).__name__
            logger.debug("could not describe a compilation: %s: %s", kind, e)

    return logs


@_never_raises
def log_trace(trace: Trace) -> None:
    """Log a trace that is complete."""
    site, title = _site(trace), _title(trace)
    cause, leaf, why = _why(trace)
    cost = trace.trace + trace.lower + trace.compile
    if trace.failed:
        text = f"tracing {title} failed after {show_seconds(trace.trace)}"
    else:
        verb = "compiled" if trace.compile else "traced"
        again = "" if cause == "first-call" else " again"
        ahead = " ahead of time" if trace.ahead else ""
        text = f"{verb} {title}{again}{ahead} in {show_seconds(cost)} ({_parts(trace)})"
    text += f", called at {site or '?'}"
    if trace.inlined:
        text += ", inside of another jitted function"
    # An inlined function is part of the compilation of the outer function.
    is_part = trace.inlined or not (trace.compile or trace.failed)
    level = logging.DEBUG if is_part else logging.INFO
    _emit(f"{text}{why}", level, site, name=title, cause=cause, leaf=leaf, seconds=cost)


def _emit(text: str, level: int, site: Line | None, **fields: Any) -> None:
    # For handlers that write fields, not lines.
    extra = {**fields, "site": site and str(site)}
    logger.log(level, "%s", text, extra={"compilation": extra})


def _title(trace: Trace) -> str:
    place = trace.function.place
    if wrapped := trace.wrapped():
        return f"{trace.function.qualname} of {wrapped[0]}"
    where = "" if place is None else f" ({shorten(place.file)}:{place.line})"
    return f"{trace.function.qualname}{where}"


def _site(trace: Trace) -> Line | None:
    """The program's own line, or a library's if there is none."""
    return user_line() or (None if trace.site is None else Line(*trace.site))


def _parts(trace: Trace | Compile) -> str:
    stages = {"trace": trace.trace, "lower": trace.lower, "XLA": trace.compile}
    parts = [f"{name} {show_seconds(x)}" for name, x in stages.items() if x]
    return ", ".join([*parts, *["read from the persistent cache"] * trace.cached])


def _why(trace: Trace) -> tuple[str, str, str]:
    """Kind of cause, path of the leaf, and both in words."""
    from eqx_fastjit.insight._differences import KINDS

    if trace.failed:
        return "failed", "", ""
    explanation = _explain(trace)
    if explanation is None:
        return "first-call", "", ": first call"
    found = explanation.differences
    # Those that make it this kind come first, whatever else differs.
    found = sorted(found, key=lambda d: KINDS.get(d.what) != explanation.kind)
    text = "; ".join(map(str, found[:_SHOWN]))
    if len(found) > _SHOWN:
        text += f"; and {len(found) - _SHOWN} more"
    leaf = found[0].path if found else ""
    return explanation.kind, leaf, f": {explanation.kind}" + f": {text}" * bool(text)


def _explain(trace: Trace) -> Any:
    from eqx_fastjit.insight._explain import explain_trace

    key = trace.key()
    earlier = (t for t in reversed(tuple(_record.traces)) if t is not trace)
    alike = (t for t in earlier if not t.failed and t.key() == key)
    return explain_trace(trace, list(itertools.islice(alike, _COMPARED))[::-1])


# --- compilations that take long -----------------------------------------------------

_timers: dict[int, threading.Timer] = {}


def _on_begin(trace: Trace, _: Any) -> None:
    site = _site(trace)
    logger.debug("tracing %s, called at %s", _title(trace), site or "?")
    _remind(trace, site, _LONG)


def _remind(trace: Trace, site: Line | None, seconds: float) -> None:
    def announce() -> None:
        text = "still compiling %s after %s, called at %s"
        logger.info(text, _title(trace), show_seconds(seconds), site or "?")
        if trace.number in _timers:
            _remind(trace, site, 2 * seconds)

    past = seconds / 2 if seconds > _LONG else 0.0
    timer = _timers[trace.number] = threading.Timer(seconds - past, announce)
    timer.daemon = True
    timer.start()


def _on_end(trace: Trace) -> None:
    if (timer := _timers.pop(trace.number, None)) is not None:
        timer.cancel()


# --- everything else -----------------------------------------------------------------


def _is_insight() -> bool:
    """Whether insight is at work on this thread."""
    return any(f.f_code.co_filename.startswith(_INSIGHT) for f in frames())


@_never_raises
def log_compile(c: Compile) -> None:
    """Log a compilation of plain `jax.jit`, or of an operation outside of jit."""
    cost = f"in {show_seconds(c.seconds)} ({_parts(c)}), called at {c.site or '?'}"
    level = logging.INFO
    if (miss := c.miss) is None:
        if _is_insight():
            return  # `breakdown` runs the function without jit
        cause, leaf = "outside-jit", ""
        text = f"compiled {c.name} {cost}: an operation outside of jit"
        if c.seconds < _LONG_OPERATION:
            level = logging.DEBUG
    else:
        cause, leaf, place = miss.kind, miss.leaf, miss.place
        if place is not None and package_of(place.file) == "eqx_fastjit":
            return  # by `inspect_jaxpr` and its like, which say what it costs
        again = "" if cause == "first-call" else " again"
        text = f"compiled {c.name} ({place or '?'}){again} {cost}, under jax.jit: "
        text += cause.replace("first-call", "first call")
        if miss.old or miss.new:
            text += f": `{leaf}`: {miss.old} -> {miss.new}"
    _emit(text, level, c.site, name=c.name, cause=cause, leaf=leaf, seconds=c.seconds)
