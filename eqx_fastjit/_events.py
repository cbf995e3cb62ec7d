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

from ._describe import Cause, compare, describe, Leaf, Reason
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


@dataclasses.dataclass(slots=True, eq=False)
class Event:
    """One trace of a function, or one compilation. Seconds are of the wall clock."""

    function: FunctionInfo
    # The leaves, nodes and statics of the call, in order, and JAX's settings.
    signature: tuple[Leaf, ...] = ()
    reason: Reason = field(default_factory=Reason)
    # Lines of the user's code, innermost first.
    frames: tuple[Place, ...] = field(default_factory=user_frames)
    number: int = field(default_factory=lambda: next(_numbers))
    started: float = field(default_factory=time.time)  # seconds since the epoch
    # The name of the thread.
    thread: str = field(default_factory=lambda: threading.current_thread().name)
    # Whether a stage ahead of time (`lower`, `trace`, ...) rather than a call.
    ahead: bool = False
    # Whether the Python function was run. If not, it was only compiled again.
    traced: bool = False
    # Whether the Python function raised, so that nothing was compiled.
    failed: bool = False
    # The number of the event of this library that was tracing at the time.
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
        """Spent on tracing, lowering and compiling. Each second is in one event."""
        return max(0.0, self.trace + self.lower + self.compile - self.nested)

    @property
    def is_outside(self) -> bool:
        """Whether it is of plain `jax.jit`, or of an operation outside of jit."""
        return self.function.number == 0

    @property
    def is_part(self) -> bool:
        """Whether it is compiled as a part of another function, or in a later stage."""
        return self.compile == 0 and not self.failed


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
        self.contexts.enter_context(owner.flat.while_compiling())


class _Here(threading.local):
    """What this thread is doing."""

    def __init__(self) -> None:
        self.open: _Open | None = None
        # Seconds of `jax.jit` since it last compiled, by function and kind; and the
        # part of them that has events.
        self.pending: dict[Any, float] = collections.defaultdict(float)
        self.nested = 0.0


_here = _Here()
# The module of the engine, which knows the specialization that this thread is calling.
_engine: Any = None


def _current() -> _Open | None:
    """The event that is open for the call that this thread is in."""
    found = _here.open
    return found if found is not None and found.owner is _engine.active() else None


def _open(event: Event) -> _Open:
    opened = _here.open = _Open(event, _engine.active(), _here.open)
    _engine.note()  # the call comes to `close` before it returns
    return opened


@contextlib.contextmanager
def tracing(function: FunctionInfo, arguments: Callable[[], Any]) -> Iterator[None]:
    """The Python function is run, to trace it.

    `arguments` gives its arguments by name, tracers in place of arrays.
    """
    opened = _current()
    if opened is not None and opened.event.traced:
        opened = None  # the function calls itself
    event = Event(function) if opened is None else opened.event
    event.traced = True
    event.signature = event.signature or describe(arguments())
    event.reason = compare(event, history)
    opened = opened or _open(event)
    opened.tracing, start = True, time.perf_counter()
    try:
        for observer in tuple(starting):
            observer(event)  # an exception here prevents the trace
        yield
    except BaseException:
        event.failed = True
        raise
    finally:
        opened.tracing = False
        event.trace += time.perf_counter() - start


def open_stage(signature: tuple[Leaf, ...], earlier: Event | None) -> Event:
    """A stage ahead of time begins, of the specialization that is active.

    `earlier` is the event of the stage before, which says why.
    """
    reason = earlier.reason if earlier else Reason()
    info = _engine.active().flat.info
    return _open(Event(info, signature, reason, ahead=True)).event


def close(arguments: Callable[[], Any] | None = None) -> None:
    """The call or stage that is active has ended: complete its event, if any.

    `arguments` gives the call's arguments by name, with the arrays that it was given.
    """
    opened = _current()
    if opened is None or opened.tracing:
        return  # of a function that is being traced, an inner call has ended
    _here.open = opened.outer
    opened.contexts.close()
    event = opened.event
    spent = event.trace + event.lower + event.compile
    if not event.traced and spent == 0:
        return  # a stage of which JAX had everything
    if event.compile and not event.ahead:
        event.first_run = max(0.0, time.perf_counter() - opened.start - spent)
    if arguments is not None and not event.is_part:
        # Tracers did not say where the arrays are, nor whether it would compile. What
        # is a part of another function has no others.
        event.signature = describe(arguments())
        event.reason = compare(event, history)
    history.append(event)
    _complete(event)


def _complete(event: Event) -> None:
    """Nothing is added to an event any more, which is no longer open."""
    around = _here.open
    spent = event.trace + event.lower + event.compile + event.first_run
    if around is not None and around.tracing:
        event.inside = around.event.number
        around.event.nested += spent
    elif event.is_part and not event.ahead:
        _here.nested += spent  # of a trace of `jax.jit`
    for observer in tuple(observers):
        observer(event)


# --- what JAX tells -------------------------------------------------------------------

# By the name of JAX's event.
_STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
_CACHE_HIT = "/jax/compilation_cache/cache_hits"


def _compiling() -> _Open | None:
    """The open event of what JAX lowers or compiles, opened if there is none.

    `None` if that is no function of this library: `jax.jit`, or an operation. So it is
    while a Python function is being traced.
    """
    opened = _current()
    if opened is not None:
        return None if opened.tracing else opened
    owner = _engine.active()
    # A trace that is known may be compiled again, for arrays that are placed otherwise.
    placed = Reason(Cause.PLACEMENT)
    return None if owner is None else _open(Event(owner.flat.info, reason=placed))


def _on_begin(event: str, value: float, **_: Any) -> None:
    """As lowering begins, which may warn of buffers that cannot be donated."""
    if _STAGES.get(event) in ("lower", "compile"):
        _compiling()


def _on_event(event: str, **_: Any) -> None:
    if event == _CACHE_HIT and (opened := _compiling()) is not None:
        opened.event.cached = True


def _on_duration(event: str, duration_secs: float, **told: Any) -> None:
    stage = _STAGES.get(event)
    if stage is None:
        return
    opened = None if stage == "trace" else _compiling()
    if opened is None:
        _outside(stage, duration_secs, told.get("fun_name", ""))
    else:
        spent = getattr(opened.event, stage)
        setattr(opened.event, stage, spent + duration_secs)


def _outside(stage: str, duration: float, name: str) -> None:
    """Something of `jax.jit` itself took this long."""
    if not observers or (stage == "trace" and _engine.active() is not None):
        return
    if stage != "trace":  # what JAX makes of a trace of `f` is `jit(f)`, or `jit_f`
        name = name[4:-1] if name.startswith("jit(") else name.removeprefix("jit_")
    _here.pending[name, stage] += duration
    if stage != "compile":
        return
    # Other traces are a part of this one, or of one that has not ended.
    seconds: dict[str, Any] = {x: _here.pending[name, x] for x in _STAGES.values()}
    nested, _here.nested = min(_here.nested, seconds["trace"]), 0.0
    _here.pending.clear()
    place = place_of(function_in_jit())
    if place is not None and not is_users(place.file):
        place = None  # an operation, or a library's
    function = FunctionInfo(name, name, place, number=0)
    event = Event(function, traced=seconds["trace"] > 0, nested=nested, **seconds)
    event.started -= sum(seconds.values())
    _complete(event)


def listen(engine: Any) -> None:
    """Listen to JAX's events on lowering and compiling. Once per process."""
    global _engine
    _engine = engine
    jax.monitoring.register_event_duration_secs_listener(_on_duration)
    jax.monitoring.register_event_listener(_on_event)
    jax.monitoring.register_scalar_listener(_on_begin)
