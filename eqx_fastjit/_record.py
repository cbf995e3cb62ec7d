"""Records what was traced and compiled, when, from where, for which call, how long.

Written whenever something is traced or compiled, which takes milliseconds at least;
never on a call that is not. `eqx_fastjit.insight` reads it. Nothing here refers to a
user's values: a `Trace` is made of texts (`_describe.py`).
"""

import collections
import contextlib
import dataclasses
import functools as ft
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any, NamedTuple

import equinox as eqx
import jax

from ._compat import around_trace
from ._describe import describe_call, Entry, FUNCTIONS, is_below
from ._place import Place


# The most traces for one function, and for the process. Counts and sums continue.
_KEPT_PER_FUNCTION = 256
_KEPT = 4096

# JAX's settings that are part of the key of a trace.
_CONFIG = (
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_default_matmul_precision",
    "jax_default_device",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_softmax_custom_jvp",
    "jax_random_seed_offset",
    "jax_use_direct_linearize",
    "jax_check_tracer_leaks",
    "jax_enable_checks",
    "jax_debug_key_reuse",
)


class FunctionInfo(NamedTuple):
    """A jitted function, in words."""

    # Distinguishes functions with the same name and place, such as lambdas in a loop.
    number: int
    name: str
    qualname: str
    # Where it was defined, if it is a Python function.
    place: Place | None
    # Whether its calls return before the device has finished.
    asynchronous: bool = True

    def key(self) -> tuple[str, Place | None]:
        """The same for each function made by the same line."""
        return self.qualname, self.place

    def title(self) -> str:
        """Name and place."""
        return f"{self.qualname} ({self.place})" if self.place else self.qualname


@dataclasses.dataclass(slots=True, eq=False)
class Trace:
    """One trace of a function, or a compilation without a trace.

    Seconds are of the wall clock.
    """

    function: FunctionInfo
    entries: tuple[Entry, ...]
    # Whether it was ahead of time (`lower`, `trace`, ...), not for a call.
    ahead: bool
    # The call: the nearest line outside of this library, JAX and Equinox.
    site: Place | None = None
    number: int = field(default_factory=lambda: next(_numbers))
    config: tuple[tuple[str, str], ...] = field(default_factory=lambda: _config())
    # Seconds since the epoch.
    started: float = field(default_factory=lambda: time.time())
    thread: int = field(default_factory=threading.get_ident)
    # Whether the Python function was run. If not, it was only compiled again.
    retraced: bool = False
    # Whether the Python function raised, so that there is nothing to run.
    failed: bool = False
    # Spent in the Python function, in lowering to StableHLO, in XLA's compiler, and
    # from then to the return of the call, which need not wait for the device.
    trace: float = 0.0
    lower: float = 0.0
    compile: float = 0.0
    first_run: float = 0.0
    # Whether JAX's persistent cache had it, so that `compile` was spent on reading.
    cached: bool = False
    # The part of this that was spent on inner functions, which have their own traces.
    nested: float = 0.0
    # The number of the trace that this one is a part of.
    inside: int | None = None

    @property
    def seconds(self) -> float:
        """The total time, including inner functions."""
        return self.trace + self.lower + self.compile + self.first_run

    @property
    def transformed(self) -> bool:
        """Whether the call was made under `jax.grad`, `jax.jit` or the like."""
        traced = ("sharding", "traced")
        return any(traced in e.facets for e in self.entries if e.kind == "array")

    @property
    def inlined(self) -> bool:
        """Whether it is a part of another function, which is compiled as a whole."""
        if self.inside is not None:
            return True
        return self.retraced and self.compile == 0 and self.transformed

    def key(self) -> Any:
        """The same for traces of which one may be blamed for differing from another.

        All callables of a class are one function to `filter_jit`, but a `Partial` of
        one function is not meant to be like that of another.
        """
        return self.function.key(), self.wrapped()

    def wrapped(self) -> tuple[str, ...]:
        """The functions that a `Partial` or the like is of, in words."""
        func = f"{self.function.name}.func"
        return tuple(
            facets["value"]
            for entry in self.entries
            if entry.kind == "static"
            if entry.path == func or is_below(entry.path, func)
            if (facets := dict(entry.facets))["type"] in FUNCTIONS
        )

    def title(self) -> str:
        """Name and place of the function, for people."""
        if wrapped := self.wrapped():
            return f"{self.function.qualname} of {wrapped[0]}"
        return self.function.title()


@dataclasses.dataclass(slots=True, eq=False)
class History:
    """The traces of one function."""

    info: FunctionInfo
    traces: int = 0
    compiles: int = 0
    # Of all traces, those dropped since included; of those inside of another function
    # it is that one's.
    seconds: float = 0.0
    traces_kept: collections.deque[Trace] = field(
        default_factory=lambda: collections.deque(maxlen=_KEPT_PER_FUNCTION)
    )
    # Most entries of a call are those of the last one: keep one of each.
    entries: dict[Entry, Entry] = field(default_factory=dict[Entry, Entry])

    def describe(self, arguments: list[tuple[str, Any]]) -> tuple[Entry, ...]:
        """`describe_call`, sharing entries; empty if a user's own class is in the way.

        A call must not fail because it could not be put in words.
        """
        try:
            entries = describe_call(arguments)
        except Exception:
            return ()
        if len(self.entries) > 10_000:
            self.entries = {}
        return tuple([self.entries.setdefault(e, e) for e in entries])


# Each compilation as it happens, if a program or `EQX_FASTJIT_LOG` asks for it.
logger = logging.getLogger("eqx_fastjit")

_numbers = itertools.count(1)
_function_numbers = itertools.count(1)
_lock = threading.RLock()  # a signal handler may call a jitted function, too
# All traces of the process, including those of functions that no longer exist.
traces: collections.deque[Trace] = collections.deque(maxlen=_KEPT)
# Called with a `Trace` and the Python function, which is about to be run; and with the
# `Trace` when all is done and its seconds are known. Their exceptions end the call.
before: list[Callable[[Trace, Any], None]] = []
after: list[Callable[[Trace], None]] = []
# Called after that with the `Trace`, the traced `jax.jit` and the arrays of the call:
# of calls only, and not of those that raised. Donated arrays are deleted by then.
called: list[Callable[[Trace, Any, list[Any]], None]] = []


def history(
    name: str, qualname: str, place: Place | None, asynchronous: bool
) -> History:
    """A new history, for a new function."""
    number = next(_function_numbers)
    return History(FunctionInfo(number, name, qualname, place, asynchronous))


@dataclasses.dataclass(slots=True, eq=False)
class Run:
    """A run of a program, or a stage of one compiled ahead of time.

    Becomes a `Trace` if something is traced or compiled within.
    """

    history: History
    arguments: Callable[[], list[tuple[str, Any]]] | None
    # May be there already, from an earlier stage, of which the history knows.
    trace: Trace | None
    ahead: bool
    # Around this one, and whether its Python function is being run.
    outer: "Run | None"
    was_tracing: bool
    known_seconds: float
    known_compile: float
    start: float

    def the_trace(self) -> Trace:
        """The `Trace` of this run, made when first asked for."""
        if self.trace is None:
            arguments = [] if self.arguments is None else self.arguments()
            entries = self.history.describe(arguments)
            self.trace = Trace(self.history.info, entries, self.ahead, _site())
        return self.trace


class _Here(threading.local):
    run: Run | None = None
    # Whether the Python function of `run` is being run.
    tracing = False


_here = _Here()


def begin(
    history: History,
    arguments: Callable[[], list[tuple[str, Any]]] | None,
    trace: Trace | None = None,
    *,
    ahead: bool = False,
) -> Run:
    """A run begins on this thread. What is returned is for `end`.

    Only once something is traced, lowered or compiled: no other call pays for it.
    """
    seconds, compile = (trace.seconds, trace.compile) if trace else (0.0, 0.0)
    outer, was_tracing, now = _here.run, _here.tracing, time.perf_counter()
    run = Run(
        history, arguments, trace, ahead, outer, was_tracing, seconds, compile, now
    )
    _here.run, _here.tracing = run, False
    return run


def end(run: Run) -> None:
    """The run has ended, with or without an error."""
    seconds = time.perf_counter() - run.start
    _here.run, _here.tracing = run.outer, run.was_tracing
    trace = run.trace
    if trace is None or (run.ahead and trace.seconds == 0):
        return
    if trace.compile and not run.ahead:
        spent = trace.trace + trace.lower + trace.compile
        trace.first_run = max(0.0, seconds - spent)
    if run.outer is not None and run.was_tracing:
        outer = run.outer.the_trace()
        trace.inside = outer.number
        outer.nested += trace.seconds
    history = run.history
    with _lock:
        if not trace.inlined:
            history.seconds += trace.seconds - run.known_seconds
        if run.known_seconds == 0:
            history.traces += trace.retraced and not trace.failed
            history.traces_kept.append(trace)
            traces.append(trace)
        history.compiles += trace.compile > run.known_compile
    if logger.isEnabledFor(logging.INFO):
        from .doctor._live import log_trace  # on insight, which few programs need

        log_trace(trace)
    for callback in tuple(after):
        callback(trace)


def arguments() -> list[tuple[str, Any]]:
    """Those of the call that is traced on this thread, by name."""
    run = _here.run
    return [] if run is None or run.arguments is None else run.arguments()


def is_busy() -> bool:
    """Whether a run of a jitted function of ours has begun on this thread."""
    return _here.run is not None


@contextlib.contextmanager
def ahead_of_time(
    history: History,
    arguments: Callable[[], list[tuple[str, Any]]] | None,
    trace: Trace | None = None,
) -> Iterator[Run]:
    """As `begin` and `end`, for a stage ahead of time.

    `trace` is that of the earlier stages.
    """
    run = begin(history, arguments, trace, ahead=True)
    try:
        yield run
    finally:
        end(run)


@contextlib.contextmanager
def tracing(history: History, source: Any) -> Iterator[None]:
    """The Python function is run, to trace it. `source` is that function, if known."""
    run = _here.run
    if (
        run is None
        or run.history is not history
        or _here.tracing
        or jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]
    ):
        yield
        return
    with around_trace():
        trace = run.the_trace()
    trace.retraced = True
    _here.tracing = True
    begun = start = time.perf_counter()
    try:
        with around_trace():
            for callback in tuple(before):
                callback(trace, source)
        start = time.perf_counter()
        run.start += start - begun  # is not the function's
        yield
    except BaseException:
        trace.failed = True
        raise
    finally:
        _here.tracing = False
        trace.trace += time.perf_counter() - start


# Opens the run of the call that JAX lowers or compiles for, if it has none.
_open_run: Callable[[], None] = lambda: None  # noqa: E731
_DURATIONS = ("/jaxpr_to_mlir_module_duration", "/backend_compile_duration")


def _current() -> Trace | None:
    """The trace of what JAX now lowers or compiles."""
    _open_run()
    run = _here.run
    # While the function runs: perhaps an operation on constants of the function.
    return None if run is None or _here.tracing else run.the_trace()


def _on_duration(event: str, duration_secs: float, **_: Any) -> None:
    if event.endswith(_DURATIONS) and (trace := _current()) is not None:
        if event.endswith(_DURATIONS[0]):
            trace.lower += duration_secs
        else:
            trace.compile += duration_secs


def _on_begin(event: str, value: float, **_: Any) -> None:
    """As lowering begins, which may warn of buffers that cannot be donated.

    A trace that is known may be lowered again, for arrays that are placed otherwise.
    """
    if event.endswith(_DURATIONS):
        _open_run()


def _on_event(event: str, **_: Any) -> None:
    if event.endswith("/cache_hits") and (trace := _current()) is not None:
        trace.cached = True


def listen(open_run: Callable[[], None]) -> None:
    """Listen to JAX's events on lowering and compiling. Once per process.

    `open_run` is called first each time: the call that this is for may have no run.
    What environment variables ask for begins here too.
    """
    if os.environ.get("EQX_FASTJIT_LOG"):
        from .doctor._live import log_from_environment

        log_from_environment()
    if os.environ.get("EQX_FASTJIT_MAX_TRACES"):
        from .insight._guard import guard_from_environment

        guard_from_environment()
    global _open_run
    _open_run = open_run
    jax.monitoring.register_event_duration_secs_listener(_on_duration)
    jax.monitoring.register_event_listener(_on_event)
    jax.monitoring.register_scalar_listener(_on_begin)


def _config() -> tuple[tuple[str, str], ...]:
    out = [(name, str(getattr(jax.config, name, None))) for name in _CONFIG]
    get_mesh = getattr(jax.sharding, "get_abstract_mesh", None)
    mesh = None if get_mesh is None else get_mesh()
    if mesh is not None and not mesh.empty:
        out.append(("mesh", str(dict(mesh.shape))))
    return tuple(out)


_HIDDEN_FOLDERS = tuple(
    os.path.dirname(os.path.abspath(file)) + os.sep
    for file in (__file__, jax.__file__, eqx.__file__)
)
_HIDDEN_FILES = {ft.__file__, contextlib.__file__}


def _site() -> Place | None:
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        if not name.startswith(_HIDDEN_FOLDERS) and name not in _HIDDEN_FILES:
            return Place(name, frame.f_lineno, code.co_qualname)
        frame = frame.f_back
    return None
