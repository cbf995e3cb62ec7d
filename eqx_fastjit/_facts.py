"""Facts: what was traced, lowered and compiled, where, and how long it took.

The engine records a `Fact` of each call, or stage ahead of time, in which anything was
traced, lowered or compiled; no other call touches this file. It puts nothing into words
and compares nothing: `insight` does, when somebody asks, or for each fact as it happens
once it has added to `watchers`.

A fact refers to none of the user's values. It has the shapes of the arrays, and refers
weakly to its specialization, which has everything else of the call.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import os
import site
import sys
import sysconfig
import threading
import time
import traceback
import types
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax

from ._private import config, Tracer, try_resolve


# The most facts that are kept for those who ask later.
_KEPT = 4096
# The most lines that are kept of the way to a call.
_MAX_FRAMES = 8

_numbers = itertools.count(1)
function_numbers = itertools.count(1)


# --- whose code it is -----------------------------------------------------------------


class Place(NamedTuple):
    """A line of source code."""

    file: str
    line: int
    # The function it stands in, or the function it is the first line of.
    function: str


# This library, and those whose frames say nothing about a program.
OWN = (
    *(os.path.dirname(x) + os.sep for x in (__file__, jax.__file__, eqx.__file__)),
    "<frozen ",
)
# Where Python and installed packages are, with the scripts that start them.
_FOLDERS = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")


@functools.cache  # to ask for them takes milliseconds, which an import need not
def _not_the_users() -> tuple[str, ...]:
    folders = [*map(sysconfig.get_path, _FOLDERS), site.getusersitepackages()]
    folders += site.getsitepackages()  # those of Debian, say
    generated = (
        *("<@", "<attrs generated", "<generated_"),  # by beartype, attrs and Equinox
        *("<timeit", "<magic-timeit"),  # by timeit, and in a notebook
    )
    return (*OWN, *(folder + os.sep for folder in folders), *generated)


@functools.cache
def is_users(file: str) -> bool:
    """Whether a file is the user's own: no installed package, and none of Python's."""
    return not file.startswith(_not_the_users())


def is_written_by_user(code: types.CodeType) -> bool:
    """Whether code is in a file of the user's, and not made by a dataclass or tuple."""
    if not is_users(code.co_filename):
        return False
    is_of_tuple = code.co_varnames[:1] == ("_cls",)  # a `collections.namedtuple`
    return not (is_of_tuple or code.co_qualname.startswith("__create_fn__"))


def user_frames() -> tuple[Place, ...]:
    """The lines of the user's code that are being run, innermost first.

    If there are none, those of other libraries than JAX and Equinox.
    """
    stack = traceback.walk_stack(sys._getframe(2))  # without `Fact.__init__`
    found = [x for x in stack if not x[0].f_code.co_filename.startswith(OWN)]
    users = [x for x in found if is_written_by_user(x[0].f_code)]
    return tuple(
        Place(frame.f_code.co_filename, line, frame.f_code.co_qualname)
        for frame, line in (users or found)[:_MAX_FRAMES]
    )


# --- a fact ---------------------------------------------------------------------------


class FunctionInfo(NamedTuple):
    """A jitted function: what it is called, and where it was defined."""

    name: str
    qualname: str
    # Where it was defined, if it is a Python function; under `jax.jit`, if a user's.
    place: Place | None
    # Distinguishes functions with the same name and place, such as lambdas in a loop.
    # Below 0 under `jax.jit`; 0 if only the name is known, as of an operation.
    number: int
    # Distinguishes two lambdas of a line, and options.
    variant: str = ""

    def key(self) -> tuple[str, Place | None, str]:
        """The same for each function made by the same text."""
        return self.qualname, self.place, self.variant


# JAX's settings that are part of the key of a trace, and that programs change.
SETTINGS = (
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_default_matmul_precision",
    "jax_default_device",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_check_tracer_leaks",
    "jax_enable_checks",
    "jax_debug_key_reuse",
)


def current_settings() -> tuple[Any, ...]:
    """JAX's settings now."""
    return tuple(getattr(config, name, None) for name in SETTINGS)


def _cell() -> int:
    """A number for the cell of a notebook that is being run; 0 elsewhere."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    history = getattr(get_shell(), "history_manager", None)
    return len(getattr(history, "input_hist_raw", ()))


@dataclasses.dataclass(slots=True, eq=False, weakref_slot=True)
class Fact:
    """What one call, or one stage ahead of time, traced, lowered or compiled.

    Seconds are of the wall clock.
    """

    function: FunctionInfo
    # Gives the specialization that was called, if it is there.
    specialization: Callable[[], Any] = lambda: None
    # What the arrays of the call were: each aval and placement once, for many are
    # alike; and the number of the one that each array was, in order.
    kinds: tuple[tuple[Any, Any], ...] = ()
    kind_numbers: Sequence[int] = ()
    # Of a stage ahead of time, the fact of the first stage.
    first: "Fact | None" = None
    settings: tuple[Any, ...] = field(default_factory=current_settings)
    # Lines of the user's code, innermost first.
    frames: tuple[Place, ...] = field(default_factory=user_frames)
    number: int = field(default_factory=lambda: next(_numbers))
    started: float = field(default_factory=time.time)  # seconds since the epoch
    thread: str = field(default_factory=lambda: threading.current_thread().name)
    cell: int = field(default_factory=_cell)
    # Whether a stage ahead of time (`lower`, `trace`, ...) rather than a call.
    ahead: bool = False
    # Whether the Python function was run. If not, it was only compiled again.
    traced: bool = False
    # Whether the Python function raised, so that nothing was compiled.
    failed: bool = False
    # Whether that was Ctrl-C, say, which is no fault of the function's.
    interrupted: bool = False
    # The number of the fact that was being traced at the time.
    inside: int | None = None
    # Whether JAX's persistent cache had it: `compile` was then spent on reading.
    cached: bool = False
    # Seconds in the Python function, in lowering to StableHLO, in XLA's compiler, and
    # from there to the return of the call, which need not wait for the device.
    trace: float = 0.0
    lower: float = 0.0
    compile: float = 0.0
    first_run: float = 0.0
    # The part of these that was spent on functions inside, which have facts too.
    nested: float = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds of all of these, with what is nested."""
        return self.trace + self.lower + self.compile + self.first_run

    @property
    def arrays(self) -> list[tuple[Any, Any]]:
        """The aval of each array of the call, and its placement, in order."""
        return [self.kinds[i] for i in self.kind_numbers]

    @property
    def is_part(self) -> bool:
        """Whether it is compiled as a part of another function, or in a later stage."""
        return self.compile == 0 and not self.failed


def aval_of(x: Any) -> Any:
    """The aval of an array, a tracer or a `jax.ShapeDtypeStruct`."""
    return getattr(x, "aval", None) or jax.typeof(x)


def placement_of(x: Any) -> Any:
    """The sharding of an array, or `None` if JAX may place it. "traced" of a tracer."""
    if isinstance(x, Tracer):
        return "traced"
    return x.sharding if getattr(x, "committed", False) else None


# Empty without tools. A watcher has four methods, of which only two may raise:
#
# - `starting(compilation, arrays)`: a Python function is about to be run. `arrays` are
#   its tracers. An exception prevents the trace.
# - `compiling(fact)`: its program is about to be lowered or compiled, or has been. The
#   frames of JAX that have the jaxpr are on the stack. An exception ends the call.
# - `complete(fact, arrays)`: nothing is added to a fact any more. `arrays` are those of
#   the call, unless they are gone.
# - `spent_elsewhere(stage, seconds, name)`: by `jax.jit` itself, or by an operation.
watchers: list[Any] = []
# Facts of jitted functions of this library, the newest last.
history: collections.deque[Fact] = collections.deque(maxlen=_KEPT)


# --- recording ------------------------------------------------------------------------


class Compilation:
    """A fact that is not complete yet, of a specialization that is being called."""

    def __init__(self, owner: Any, outer: "Compilation | None", **fields: Any):
        self.fact = Fact(owner.flat.info, weakref.ref(owner), **fields)
        self.owner = owner
        # That of the same thread around it, as one that is traced calls others; and the
        # fact of the outermost one.
        self.outer = outer
        self.outermost: Fact = outer.outermost if outer else self.fact

        # What JAX compiles is only of it in the first phase: in the second its Python
        # function is run, and in the third watchers are told that it is complete.
        self.phase: Literal["compiling", "tracing", "complete"] = "compiling"
        self.start = time.perf_counter()

        self.contexts = contextlib.ExitStack()
        self.contexts.enter_context(owner.flat.while_compiling())

    def set_arrays(self, arrays: Sequence[Any]) -> None:
        """Keep in the fact what the arrays of the call are."""
        known: dict[tuple[Any, Any], int] = {}
        with contextlib.suppress(Exception):  # of a subclass of `numpy.ndarray`, say
            pairs = [(aval_of(x), placement_of(x)) for x in arrays]
            indices = [known.setdefault(pair, len(known)) for pair in pairs]
            self.fact.kinds, self.fact.kind_numbers = tuple(known), array("I", indices)


# What each thread is compiling: the innermost, by the thread's number.
compilations: dict[int, Compilation] = {}
# The module of the engine, which knows the specialization that this thread is calling.
_engine: Any = None


def _begin(**fields: Any) -> Compilation:
    thread = threading.get_ident()
    begun = Compilation(_engine.active(), compilations.get(thread), **fields)
    compilations[thread] = begun
    _engine.mark_new()  # the call comes to `close` before it returns
    return begun


def _current() -> Compilation | None:
    """That of the call that this thread is in, if it has begun."""
    found = compilations.get(threading.get_ident())
    return found if found is not None and found.owner is _engine.active() else None


def is_compiling() -> bool:
    """Whether the call that this thread is in has traced, lowered or compiled."""
    return _current() is not None


def tracing_now() -> Fact | None:
    """The fact of the function that this thread is tracing, if it is."""
    found = compilations.get(threading.get_ident())
    while found is not None and found.phase == "complete":
        found = found.outer
    return found.fact if found is not None and found.phase == "tracing" else None


@contextlib.contextmanager
def tracing(arrays: Sequence[Any]) -> Iterator[None]:
    """The Python function of the active specialization is run, to trace it.

    `arrays` are the tracers.
    """
    now = _current()
    if now is None or now.phase != "compiling":
        now = _begin()  # the first one, or the function calls itself
    # Else a stage has begun it; or JAX runs what it has traced for this call again, to
    # look for a NaN.

    fact = now.fact
    fact.traced = True
    start = time.perf_counter()
    try:
        now.phase = "tracing"
        for watcher in tuple(watchers):
            watcher.starting(now, arrays)
        start = time.perf_counter()
        yield
    except BaseException as e:
        fact.failed = True
        fact.interrupted = not isinstance(e, Exception)
        if not fact.ahead:
            now.set_arrays(arrays)
        raise
    finally:
        now.phase = "compiling"
        fact.trace += time.perf_counter() - start


def open_stage(first: Fact | None, arrays: Sequence[Any] = ()) -> Fact:
    """A stage ahead of time begins, of the specialization that is active.

    `arrays` are those of the call, of which the fact of the `first` stage tells.
    """
    begun = _begin(ahead=True, first=first)
    begun.set_arrays(arrays)
    return begun.fact


def close(arrays: Sequence[Any] | None = None) -> bool:
    """The call or stage that is active has ended: complete its fact, if any.

    Returns whether there was one.

    `arrays` are those that the call was given.
    """
    now = _current()
    if now is None or now.phase != "compiling":
        return False  # an inner call has ended, of a trace or of a watcher

    fact = now.fact
    now.phase = "complete"
    try:
        now.contexts.close()
        spent = fact.trace + fact.lower + fact.compile
        if not fact.traced and spent == 0:
            return True  # a stage of which JAX had everything

        if fact.compile and not fact.ahead:
            fact.first_run = max(0.0, time.perf_counter() - now.start - spent)
        if arrays is not None:
            now.set_arrays(arrays)

        around = tracing_now()
        if around is not None:
            fact.inside = around.number
            around.nested += fact.elapsed

        history.append(fact)
        for watcher in tuple(watchers):
            watcher.complete(fact, arrays)
    finally:
        thread = threading.get_ident()
        if now.outer is None:
            del compilations[thread]
        else:
            compilations[thread] = now.outer
    return True


# --- what JAX tells -------------------------------------------------------------------

# By the name of JAX's event.
STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
_CACHE_HIT = "/jax/compilation_cache/cache_hits"


def _compiled_now() -> Compilation | None:
    """That of what JAX lowers or compiles, which begins if there is none.

    `None` if that is no function of this library: `jax.jit`, or an operation. So it is
    while a Python function is being traced, and of what watchers do.
    """
    now = _current()
    if now is not None:
        return now if now.phase == "compiling" else None
    # A trace that is known may be compiled again, for arrays that are placed otherwise.
    return None if _engine.active() is None else _begin()


def _on_begin(event: str, value: float, **_: Any) -> None:
    """A stage begins: lowering may warn of buffers that cannot be donated.

    JAX records a scalar then, which is the time.
    """
    if STAGES.get(event) in ("lower", "compile") and (now := _compiled_now()):
        for watcher in tuple(watchers):
            watcher.compiling(now.fact)


def _on_event(event: str, **_: Any) -> None:
    if event == _CACHE_HIT and (now := _compiled_now()) is not None:
        now.fact.cached = True


def _on_duration(event: str, duration_secs: float, **told: Any) -> None:
    stage = STAGES.get(event)
    if stage is None:
        return

    # Its Python function has its own clock.
    now = None if stage == "trace" else _compiled_now()
    if now is not None:
        setattr(now.fact, stage, getattr(now.fact, stage) + duration_secs)
        # Some versions of JAX do not tell of the beginning.
        for watcher in tuple(watchers):
            watcher.compiling(now.fact)
    elif stage != "trace" or _engine.active() is None:
        for watcher in tuple(watchers):
            watcher.spent_elsewhere(stage, duration_secs, told.get("fun_name", ""))


def listen(engine: Any) -> None:
    """Listen to JAX's events on lowering and compiling. Once per process."""
    global _engine
    _engine = engine
    for kind, listener in (
        ("event_duration_secs", _on_duration),
        ("event", _on_event),
        ("scalar", _on_begin),
    ):
        # Of what is not there, nobody is told.
        try_resolve(f"jax.monitoring:register_{kind}_listener", id)(listener)
