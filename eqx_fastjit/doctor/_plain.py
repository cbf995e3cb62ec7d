"""Compilations of plain `jax.jit` functions, by what JAX tells the public.

JAX announces how long each compilation took (`jax.monitoring`), and logs why a
function of the program's was traced (`jax_explain_cache_misses`). That gives the
function, the call, the seconds, and the cause by argument; not the paths of leaves
inside of an argument's pytree, no values, and no jaxpr.
"""

import ast
import dataclasses
import logging
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ._sites import (
    expression_at,
    Line,
    line_at,
    outermost_frame,
    user_frame,
    user_lines,
)


# Explanations that wait for the compilation they explain, functions inside included.
_MAX_PENDING = 1000


@dataclasses.dataclass
class Miss:
    """Why JAX traced a function, as its log has it."""

    name: str
    place: Line | None
    # "first-call", or a kind of finding.
    kind: str
    leaf: str = ""
    old: str = ""
    new: str = ""
    # Of an array, in the new call.
    dtype: str = ""


@dataclasses.dataclass
class Compile:
    """One compilation. Times are in seconds."""

    name: str
    # `None` for what JAX compiles for itself: operations outside of any function.
    miss: Miss | None
    # The line of the program that led to it.
    site: Line | None
    # Since the epoch.
    started: float
    # The expression in that line, as it stands there; empty if it is not known.
    expression: str = ""
    trace: float = 0.0
    lower: float = 0.0
    compile: float = 0.0
    thread: int = 0
    # Whether JAX's persistent cache had it.
    cached: bool = False
    # The lines that all functions of the program were at, the innermost first.
    stack: tuple[Line, ...] = ()
    # As for a `Trace`; JAX does not tell.
    first_run: float = 0.0

    @property
    def seconds(self) -> float:
        return self.trace + self.lower + self.compile


class _Pending(threading.local):
    def __init__(self) -> None:
        self.misses: list[Miss] = []
        self.traces: dict[str, float] = {}
        self.lower = 0.0
        self.cached = False


class PlainJits:
    """Notes each compilation of the process that is not of a function of ours."""

    # The one that takes JAX's explanations in; there may be no other.
    started: "PlainJits | None" = None

    def __init__(self, *, keep: bool = True) -> None:
        # Those so far, if they are to be kept.
        self.compiles: list[Compile] = []
        self.keep = keep
        self.on_compile: Callable[[Compile], None] | None = None
        # All seconds spent on compiling, ours included.
        self.seconds = 0.0
        # While we ourselves have something compiled.
        self.paused = False
        # Whether JAX's explanations are to be had.
        self.explained = False
        self._pending = _Pending()
        self._seen: dict[tuple[str, Line | None], Miss] = {}
        self._filter = _Explanations(self)
        self._loggers: list[logging.Logger] = []

    def start(self) -> None:
        """Begin, in a process that has imported JAX."""
        import jax

        jax.monitoring.register_event_duration_secs_listener(self._on_duration)
        jax.monitoring.register_event_listener(self._on_event)
        name = "jax_explain_cache_misses"
        # Where the program's user asked for the log, let it be printed too.
        self._filter.printing = bool(getattr(jax.config, name, False))
        try:
            jax.config.update(name, True)
        except AttributeError:
            return
        # Which of them explains is JAX's business.
        names = [n for n in logging.root.manager.loggerDict if n.startswith("jax.")]
        self._loggers = [logging.getLogger(name) for name in names]
        for logger in self._loggers:
            logger.addFilter(self._filter)
        self.explained = True
        PlainJits.started = self

    def stop(self) -> None:
        """Leave JAX's logging as it was."""
        import jax

        if self.explained and not self._filter.printing:
            jax.config.update("jax_explain_cache_misses", False)
        for logger in self._loggers:
            logger.removeFilter(self._filter)
        PlainJits.started = None

    def _on_event(self, event: str, **_: Any) -> None:
        if event.endswith("/cache_hits") and not self.paused:
            self._pending.cached = True

    def _on_duration(self, event: str, duration_secs: float, **extra: Any) -> None:
        if "/compile/" not in event or self.paused:
            return
        name = _bare(str(extra.get("fun_name", "?")))
        pending = self._pending
        if event.endswith("/jaxpr_trace_duration"):
            pending.traces[name] = duration_secs
            return
        self.seconds += duration_secs
        if _is_ours():
            pending.cached = False
        elif event.endswith("/jaxpr_to_mlir_module_duration"):
            pending.lower = duration_secs
        elif event.endswith("/backend_compile_duration"):
            self._compiled(name, duration_secs)

    def _compiled(self, name: str, seconds: float) -> None:
        pending = self._pending
        miss = None
        for i in reversed(range(len(pending.misses))):
            if pending.misses[i].name == name:
                # What came later are functions inside of it, which do not count.
                miss = pending.misses[i]
                del pending.misses[i:]
                break
        trace = pending.traces.get(name, 0.0)
        frame = user_frame() if miss is not None else outermost_frame()
        compiled = Compile(
            name,
            miss,
            None if frame is None else line_at(frame),
            time.time() - trace - pending.lower - seconds,
            "" if frame is None else expression_at(frame.f_code, frame.f_lasti),
            trace,
            pending.lower,
            seconds,
            threading.get_ident(),
            pending.cached,
            user_lines() if miss is not None else (),
        )
        if self.keep:
            self.compiles.append(compiled)
        pending.traces.clear()
        pending.lower, pending.cached = 0.0, False
        if self.on_compile is not None:
            self.on_compile(compiled)

    def explain(self, text: str) -> None:
        """Take in an explanation of JAX's."""
        if self.paused or _is_ours():
            return
        miss = parse(text)
        if miss is None:
            return
        key = (miss.name, miss.place)
        if miss.kind == "first-call" and key in self._seen and miss.place is not None:
            miss.kind = "fresh-function"
        self._seen[key] = miss
        # Of functions that are traced but never compiled it may be the last trace.
        del self._pending.misses[:-_MAX_PENDING]
        self._pending.misses.append(miss)


def _is_ours() -> bool:
    """Whether a function of ours is being traced or compiled: `_record` knows more."""
    record = sys.modules.get("eqx_fastjit._record")
    return record is not None and record.is_busy()


# What JAX says about its persistent cache.
_OF_THE_CACHE = (
    "PERSISTENT COMPILATION CACHE MISS",
    "Not writing persistent cache entry",
    "Writing %s to persistent compilation cache",
)


class _Explanations(logging.Filter):
    """Takes JAX's explanations in, and keeps them from being printed."""

    def __init__(self, plain: PlainJits):
        super().__init__()
        self.plain = plain
        self.printing = False

    def filter(self, record: logging.LogRecord) -> bool:
        message = str(record.msg)
        if message.startswith(_OF_THE_CACHE):
            # Because of the same setting; else they are of a lower level.
            return self.printing or record.levelno < logging.WARNING
        if not message.startswith("TRACING CACHE MISS"):
            return True
        try:
            self.plain.explain(record.getMessage())
        except Exception:  # another wording: the program must not suffer from it
            self.plain.explained = False
        return self.printing


def _bare(name: str) -> str:
    """`f` for `jit(f)`, as the function is called once it is lowered."""
    inside = re.fullmatch(r"p?jit\((.*)\)|jit_(.*)", name)
    return name if inside is None else inside[1] or inside[2]


_DEFINED = re.compile(r"^ +(?:for )?(\S+)(?: id=\d+)? defined at (.+):(\d+)$", re.M)
_TYPES = re.compile(r"^ +\* at (.*?), now (.*) and before (.*)$", re.M)
_PATHS = re.compile(r"^ +\* at input path (.*?), now (.*) and before (.*), so ", re.M)
_STATIC = re.compile(r"Static\(val=(.*)\)$")
# What is in a report of a static: a number, or a short text.
_SHORT = re.compile(r"-?[\d.einfa+j-]{1,20}|True|False|None|'[^']{0,30}'")


def parse(text: str) -> Miss | None:
    """Read an explanation; `None` if it is worded as none that is known."""
    defined = _DEFINED.search(text)
    if not text.startswith("TRACING CACHE MISS") or defined is None:
        return None
    name, file, line = defined.groups()
    place = Line(file, int(line), name)
    if "never seen function" in text:
        return Miss(name, place, "first-call")
    if (found := _PATHS.search(text)) is not None:
        path, new, old = found.groups()
        is_static = "metadata" in text or "Static(" in text
        kind = "static-churn" if is_static else "structure-churn"
        return Miss(name, place, kind, _argument(path), _static(old), _static(new))
    if (found := _TYPES.search(text)) is not None:
        path, new, old = found.groups()
        was, now = _type(old), _type(new)
        kinds = ("dtype-churn", "shape-churn", "weak-type")
        for kind, x, y in zip(kinds, was, now, strict=True):
            if x != y:
                values = x or "strong", y or "strong"
                return Miss(name, place, kind, path, *values, dtype=now[0])
        return Miss(name, place, "sharding-churn", path, dtype=now[0])
    if "context doesn't match" in text:
        return Miss(name, place, "config-churn")
    return Miss(name, place, "other")


def _argument(path: str) -> str:
    """`argument 1` for JAX's `[0][1]`, the second of the positional arguments."""
    found = re.match(r"\[([01])\](?:\[(.*?)\])?(.*)", path)
    if found is None or found[2] is None:
        return "arguments"
    name = f"argument {found[2]}" if found[1] == "0" else found[2].strip("'")
    return f"{name}{found[3]}"


def _static(text: str) -> str:
    """A static as `describe_static` has it, with the type of a number."""
    found = _STATIC.search(text)
    if found is None or not _SHORT.fullmatch(found[1]):
        return "another value"
    try:
        value = ast.literal_eval(found[1])
    except (ValueError, SyntaxError):
        return "another value"
    return f"{value!r} ({type(value).__name__})"


def _type(text: str) -> tuple[str, str, str]:
    """Dtype, shape and whether it is weakly typed, of `f32[4]({}){weak_type=True}`."""
    found = re.match(r"(?:key<\w+>|[A-Za-z]\w*)(\[[^\]]*\])?", text)
    shape = (found and found[1]) or ""
    dtype = text[: len(found[0]) - len(shape)] if found else text
    return dtype, shape or "[]", "weak" if "weak_type=True" in text else ""
