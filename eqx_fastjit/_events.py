"""Events: what was traced, lowered and compiled, why, and how long it took.

The engine emits an `Event` for each call, or stage ahead of time, in which anything was
traced, lowered or compiled; no other call touches this file. All tools are made of
these events. The engine knows no tool: whoever wants to see events adds a function to
`starting` or `observers`.

An event refers to none of the user's values: leaves are described by shapes, dtypes and
short texts (`_describe.py`).
"""

import collections
import contextlib
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

import jax

from ._describe import Cause, compare, configuration, describe, Leaf, Reason
from ._place import is_users, Place, place_of, user_frames
from ._private import function_in_jit


# The most events that are kept for those who ask later.
_KEPT = 4096

_numbers = itertools.count(1)
_function_numbers = itertools.count(1)


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionInfo:
    """A jitted function, in words."""

    name: str
    qualname: str
    # Where it was defined, if it is a Python function; under `jax.jit`, if a user's.
    place: Place | None
    # Distinguishes functions with the same name and place, such as lambdas in a loop.
    # 0 for a function of `jax.jit`, or an operation, of which only the name is known.
    number: int = field(default_factory=lambda: next(_function_numbers))

    def key(self) -> tuple[str, Place | None]:
        """The same for each function made by the same line."""
        return self.qualname, self.place

    def title(self) -> str:
        """Name and place."""
        return f"{self.qualname} ({self.place})" if self.place else self.qualname


@dataclasses.dataclass(slots=True, eq=False)
class Event:
    """One trace of a function, or one compilation. Seconds are of the wall clock."""

    function: FunctionInfo
    # The leaves, nodes and statics of the call, in order.
    signature: tuple[Leaf, ...] = ()
    reason: Reason = field(default_factory=Reason)
    # JAX's settings that are part of the key of a trace, as `(name, text)`.
    config: tuple[tuple[str, str], ...] = field(default_factory=configuration)
    # Lines of the user's code, innermost first.
    frames: tuple[Place, ...] = field(default_factory=user_frames)
    number: int = field(default_factory=lambda: next(_numbers))
    started: float = field(default_factory=time.time)  # seconds since the epoch
    thread: int = field(default_factory=threading.get_ident)
    # Whether a stage ahead of time (`lower`, `trace`, ...) rather than a call.
    ahead: bool = False
    # Whether the Python function was run. If not, it was only compiled again.
    traced: bool = False
    # Whether the Python function raised, so that nothing was compiled.
    failed: bool = False
    # Whether it is a part of another function, which is compiled as a whole: the number
    # of the event that was tracing, if it is one of this library.
    inlined: bool = False
    inside: int | None = None
    # Whether JAX's persistent cache had it: `compile` was then spent on reading.
    cached: bool = False
    # Seconds in the Python function, in lowering to StableHLO, in XLA's compiler, and
    # from there to the return of the call, which need not wait for the device.
    trace: float = 0.0
    lower: float = 0.0
    compile: float = 0.0
    first_run: float = 0.0
    # The part of these that was spent on functions inside, which have events too.
    nested: float = 0.0

    @property
    def cause(self) -> Cause:
        """Why it happened, in a word or two."""
        return self.reason.cause

    @property
    def seconds(self) -> float:
        """The total time, that of inner functions included."""
        return self.trace + self.lower + self.compile + self.first_run

    @property
    def own_seconds(self) -> float:
        """The total time without inner functions: each second belongs to one event."""
        return max(0.0, self.seconds - self.nested)

    @property
    def is_outside(self) -> bool:
        """Whether it is of plain `jax.jit`, or of an operation outside of jit."""
        return self.function.number == 0


# Called with an event whose Python function is about to be run; its cause is known, its
# seconds are not. An exception ends the call.
starting: list[Callable[[Event], None]] = []
# Called with each event when it is complete.
observers: list[Callable[[Event], None]] = []
# Events of jitted functions of this library, the newest last.
history: collections.deque[Event] = collections.deque(maxlen=_KEPT)


class _Open:
    """An event that is not complete yet, of the specialization that is being called."""

    def __init__(self, event: Event, owner: Any, outer: "_Open | None"):
        self.event = event
        self.owner = owner
        self.outer = outer
        self.tracing = False
        self.start = time.perf_counter()
        self.contexts = contextlib.ExitStack()
        # Named by function and cause, so that XProf shows why.
        name = f"compile {event.function.name}: {event.cause.value}"
        self.contexts.enter_context(jax.profiler.TraceAnnotation(name))
        if owner is not None:
            self.contexts.enter_context(owner.flat.while_compiling())


class _Here(threading.local):
    """What this thread is doing."""

    open: _Open | None = None
    # Seconds of `jax.jit` that were spent before it compiles, by function and kind; and
    # the part of them that has events.
    pending: dict[tuple[str, str], float] | None = None
    nested: float = 0.0


_here = _Here()
# The specialization that this thread is calling, or `None`; and a note for that call
# to come to `close` before it returns. Both are the engine's (`listen`).
_active: Callable[[], Any] = lambda: None  # noqa: E731
_note: Callable[[], None] = lambda: None  # noqa: E731


def _current() -> _Open | None:
    """The event that is open for the call that this thread is in."""
    found = _here.open
    return found if found is not None and found.owner is _active() else None


def _open(event: Event) -> _Open:
    outer = _here.open
    if outer is not None and outer.tracing:
        event.inside = outer.event.number
        event.inlined = True
    opened = _here.open = _Open(event, _active(), outer)
    _note()
    return opened


@contextlib.contextmanager
def tracing(function: FunctionInfo, arguments: Callable[[], Any]) -> Iterator[None]:
    """The Python function is run, to trace it.

    `arguments` gives its arguments by name, tracers in place of arrays.
    """
    opened = _current()
    begun = opened is not None and not opened.event.traced  # a stage ahead of time
    event = opened.event if opened is not None and begun else Event(function)
    event.traced = True
    event.signature = describe(arguments())
    event.reason = compare(event, history)
    if opened is None or not begun:
        opened = _open(event)
    opened.tracing, start = True, time.perf_counter()
    try:
        _emit(event, starting)  # an exception here prevents the trace
        yield
    except BaseException:
        event.failed = True
        raise
    finally:
        opened.tracing = False
        event.trace += time.perf_counter() - start


def close(arguments: Callable[[], Any] | None = None) -> None:
    """The call that is active has returned or raised: complete its event, if any.

    `arguments` gives the call's arguments by name, with the arrays that it was given:
    tracers do not say where these are.
    """
    opened = _current()
    if opened is None or opened.tracing:
        return  # of a function that is being traced, an inner call has ended
    _here.open = opened.outer
    opened.contexts.close()
    event = opened.event
    if not event.traced and event.lower == event.compile == 0:
        return  # a stage of which JAX had everything
    spent = event.trace + event.lower + event.compile
    if event.compile and not event.ahead:
        event.first_run = max(0.0, time.perf_counter() - opened.start - spent)
    if arguments is not None:
        event.signature = describe(arguments())
    if not event.ahead and (event.compile or not event.traced):
        # Before, it was not known where the arrays are, and whether it would compile.
        event.reason = compare(event, history)
    if event.inside is not None and opened.outer is not None:
        opened.outer.event.nested += event.seconds
    elif event.traced and event.compile == 0 and not event.ahead:
        event.inlined = not event.failed
        _here.nested += event.seconds  # of a trace of `jax.jit`
    history.append(event)
    _emit(event, observers)


def _emit(event: Event, to: list[Callable[[Event], None]]) -> None:
    for observer in tuple(to):
        observer(event)


# --- what JAX tells -------------------------------------------------------------------

_TRACE = "/jax/core/compile/jaxpr_trace_duration"
_LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILE = "/jax/core/compile/backend_compile_duration"
_CACHE_HIT = "/jax/compilation_cache/cache_hits"


def _compiling() -> _Open | None:
    """The open event of what JAX lowers or compiles, opened if there is none.

    `None` if that is no function of this library: `jax.jit`, or an operation. So it is
    while a Python function is being traced.
    """
    opened = _current()
    if opened is not None:
        return None if opened.tracing else opened
    owner = _active()
    # A trace that is known may be compiled again, for arrays that are placed otherwise.
    return None if owner is None else _open(Event(owner.flat.info))


def _on_duration(event: str, duration_secs: float, **told: Any) -> None:
    if event not in (_TRACE, _LOWER, _COMPILE):
        return
    opened = None if event == _TRACE else _compiling()
    if opened is None:
        _outside(event, duration_secs, told.get("fun_name", ""))
    elif event == _LOWER:
        opened.event.lower += duration_secs
    else:
        opened.event.compile += duration_secs


def _outside(kind: str, duration: float, name: str) -> None:
    """Something of `jax.jit` itself took this long."""
    if not observers or (kind == _TRACE and _active() is not None):
        return
    if kind != _TRACE:  # what JAX makes of a trace of `f` is `jit(f)`, or `jit_f`
        name = name[4:-1] if name.startswith("jit(") else name.removeprefix("jit_")
    pending = _here.pending = _here.pending or {}
    if kind != _COMPILE:
        pending[name, kind] = pending.get((name, kind), 0.0) + duration
        return
    # Other traces are a part of this one, or of one that has not ended.
    nested, _here.nested, _here.pending = _here.nested, 0.0, None
    place = place_of(function_in_jit())
    if place is not None and not is_users(place.file):
        place = None  # an operation, or a library's
    function = FunctionInfo(name, name, place, number=0)
    event = Event(function, compile=duration, traced=(name, _TRACE) in pending)
    event.trace = pending.get((name, _TRACE), 0.0)
    event.lower = pending.get((name, _LOWER), 0.0)
    event.nested = min(nested, event.trace)
    event.started -= event.seconds
    opened = _here.open
    if opened is not None and opened.tracing:
        event.inside = opened.event.number
        opened.event.nested += event.lower + event.compile
    _emit(event, observers)


def _on_begin(event: str, value: float, **_: Any) -> None:
    """As lowering begins, which may warn of buffers that cannot be donated."""
    if event in (_LOWER, _COMPILE):
        _compiling()


def _on_event(event: str, **_: Any) -> None:
    if event == _CACHE_HIT and (opened := _compiling()) is not None:
        opened.event.cached = True


def listen(active: Callable[[], Any], note: Callable[[], None]) -> None:
    """Listen to JAX's events on lowering and compiling. Once per process.

    **Arguments:**

    - `active`: returns the specialization that this thread is calling, or `None`.
    - `note`: makes that call come to `close` when it returns.
    """
    global _active, _note
    _active, _note = active, note
    jax.monitoring.register_event_duration_secs_listener(_on_duration)
    jax.monitoring.register_event_listener(_on_event)
    jax.monitoring.register_scalar_listener(_on_begin)


@contextlib.contextmanager
def stage(signature: tuple[Leaf, ...], earlier: Event | None) -> Iterator[Event]:
    """A stage ahead of time of the specialization that is active.

    `signature` is that of the call; `earlier` is the event of the stage before, which
    says why.
    """
    event = Event(_active().flat.info, signature, ahead=True)
    if earlier is not None:
        event.reason = earlier.reason
    opened = _open(event)
    try:
        yield event
    finally:
        if _here.open is opened:
            event.signature = signature  # with where the arrays are
            close()
