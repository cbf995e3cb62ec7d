"""Watches a program: what it traces and compiles, and where it blocks."""

import collections
import dataclasses
import functools as ft
import threading
import time
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TYPE_CHECKING

from ._machine import Processor
from ._plain import PlainJits
from ._report import Program
from ._sampler import Sampler
from ._sites import Line, look_again, user_lines
from ._waits import Waits


if TYPE_CHECKING:
    from eqx_fastjit._record import Trace
    from eqx_fastjit.insight._explain import Compared
    from eqx_fastjit.insight._jaxpr import Inspection

# The most traces to inspect for each function. Each takes about as long as a trace.
_INSPECTED = 2
# Programs that are kept, with `programs`.
_PROGRAMS = 50
# Snapshots that are kept for each function.
_SNAPSHOTS = 8


class Deviation(NamedTuple):
    """How a leaf of a result differs between jitted and eager."""

    path: str
    # Largest difference, and largest value of the eager result, both finite.
    absolute: float
    scale: float
    # The largest value of all leaves, at least 1.
    largest: float
    # Of the dtype: the distance from 1 to the next number.
    eps: float
    ulps: int
    # NaNs and infinities in only one of the two.
    not_finite: int


@dataclasses.dataclass
class Seen:
    """A trace of a function under `filter_jit`, and what was found about it."""

    trace: "Trace"
    # The line of the program that led to it.
    site: Line | None
    # It only contains texts and numbers.
    inspection: "Inspection | None" = None
    deviations: list[Deviation] | None = None
    # Why it was traced again, once that is known.
    explanation: "Compared | None" = None
    # With `programs`.
    program: Program | None = None
    # The lines that all functions of the program were at, the innermost first.
    stack: tuple[Line, ...] = ()
    # Dtype and shape of each array of the result.
    results: tuple[tuple[str, str], ...] = ()

    @property
    def arrays(self) -> dict[str, dict[str, str]]:
        """What is known of each array among the arguments, by path."""
        return {e.path: dict(e.facets) for e in self.trace.entries if e.kind == "array"}

    @property
    def calls_host(self) -> bool:
        """Whether it calls back into Python when it is run."""
        return self.inspection is not None and bool(self.inspection.callbacks)


# A function, and what was there before its trace.
_Ref = weakref.ref[Any]
_Before = tuple[_Ref, Any]


class Kept(NamedTuple):
    """A trace, a snapshot of what it may have read, and the function."""

    trace: "Trace"
    snapshot: Any
    source: _Ref


class Watch:
    """Watches this process from the import of JAX on.

    Calls that neither compile nor wait for the device are left alone. Nothing of what
    is kept refers to the program's arrays. With `numerics`, each function is compared
    with its eager run, once. With `programs`, the text and the cost of what is compiled
    are kept, for which each is lowered and compiled a second time.
    """

    def __init__(self, *, numerics: bool = False, programs: bool = False):
        self.numerics = numerics
        self.programs = programs
        self.started = time.time()
        self.seconds = 0.0
        # By number of the trace, in the order in which they ended.
        self.seen: dict[int, Seen] = {}
        self.plain = PlainJits()
        self.waits = Waits(lambda: self.plain.seconds)
        self.sampler = Sampler(self.compiling)
        # Seconds spent on inspecting traces.
        self.own_seconds = 0.0
        # JAX's cache directory, if any, and the shortest compilations that it keeps.
        self.cache_directory: str | None = None
        self.cache_seconds = 0.0
        # By number of the function: the values that each trace may have read.
        self.snapshots: dict[int, collections.deque[Kept]] = {}
        # Names that a trace itself writes to, such as a count of traces.
        self.written: set[str] = set()
        # Traces of calls that are going on.
        self.begun: dict[int, Trace] = {}
        # What could not be watched, in words.
        self.notes: list[str] = []
        self._processor = Processor()
        self._share: float | None = None
        self.watches_jax = False
        self.watches_ours = False
        # By number of a trace that has begun: a snapshot; the program's variables.
        self._begun: dict[int, _Before] = {}
        self._around: dict[int, _Before] = {}
        self._inspected: collections.Counter[Any] = collections.Counter()
        # By line of a function: the code that ran in its traces.
        self._executed: dict[Any, set[types.CodeType]] = {}
        self._paused = False

    def begin(self) -> None:
        """The program is about to begin."""
        self.started = time.time()
        self._processor = Processor()
        self.sampler.start()

    def so_far(self) -> float:
        """Seconds since the program began, until it was over."""
        return self.seconds or time.time() - self.started

    @property
    def share(self) -> float:
        """The share of its time that the program had a processor, until it was over."""
        if self._share is not None:
            return self._share
        return self._processor.share(self.plain.seconds)

    def compiling(self) -> list[tuple[float, float]]:
        """When the main thread traced, lowered or compiled, since the epoch."""
        main = threading.main_thread().ident
        now = time.time()
        begun = [(t, now) for t in tuple(self.begun.values())]
        ours = [s.trace for s in tuple(self.seen.values())]
        done = (*ours, *tuple(self.plain.compiles))
        ended = [(t, t.started + t.trace + t.lower + t.compile) for t in done]
        return [(t.started, end) for t, end in (*begun, *ended) if t.thread == main]

    def jax_imported(self) -> None:
        """JAX is there: to be called once it has been imported."""
        self.watches_jax = True
        look_again()
        for part in (self.plain, self.waits):
            try:
                part.start()
            except Exception as e:  # an unknown JAX: the program must go on
                self.notes.append(f"{type(part).__name__} could not be watched: {e}")

    def equinox_imported(self) -> None:
        """Equinox is there, and our `filter_jit` in its place."""
        from eqx_fastjit import _record

        self.watches_ours = True
        look_again()
        _record.before.append(self._before)
        _record.after.append(self._after)
        _record.called.append(self._called)

    def stop(self) -> None:
        self.seconds = time.time() - self.started
        self._share = self.share
        self.sampler.stop()
        if self.watches_jax:
            self._look_at_cache()
            self.waits.stop()
            self.plain.stop()
        if self.watches_ours:
            from eqx_fastjit import _record

            _record.before.remove(self._before)
            _record.after.remove(self._after)
            _record.called.remove(self._called)
        # What JAX has registered stays so.
        self._pause(True)

    def _look_at_cache(self) -> None:
        import jax

        if getattr(jax.config, "jax_enable_compilation_cache", None) is not False:
            directory = getattr(jax.config, "jax_compilation_cache_dir", None)
            self.cache_directory = directory or None
        least = getattr(jax.config, "jax_persistent_cache_min_compile_time_secs", None)
        self.cache_seconds = 1.0 if least is None else float(least)

    # --- called back by `_record` ---

    def _before(self, trace: "Trace", source: Any) -> None:
        if self._paused:
            return
        self.begun[trace.number] = trace
        if source is not None:
            self._guarded(trace, ft.partial(self._look_before, trace, source))

    def _look_before(self, trace: "Trace", source: Any) -> None:
        from eqx_fastjit import _record
        from eqx_fastjit.insight import snapshot

        taken = snapshot(source, _record.arguments())
        self._begun[trace.number] = weakref.ref(source), taken
        if trace.inside is None:
            from eqx_fastjit.insight._surroundings import surroundings

            self._around[trace.number] = weakref.ref(source), surroundings()

    def _after(self, trace: "Trace") -> None:
        self.begun.pop(trace.number, None)
        # Comes once for each stage, of what is compiled ahead of time.
        if self._paused or trace.number in self.seen:
            return
        stack = user_lines()
        site = stack[0] if stack else None
        self.seen[trace.number] = Seen(trace, site, stack=stack)
        begun = self._begun.pop(trace.number, None)
        if trace.failed:
            self._around.pop(trace.number, None)
        if begun is not None and not trace.failed:
            self._guarded(trace, ft.partial(self._look_after, trace, *begun))

    def _look_after(self, trace: "Trace", source: _Ref, earlier: Any) -> None:
        from eqx_fastjit.insight import changed, Snapshot, snapshot

        if (function := source()) is None:
            return
        self.written.update(change.name for change in changed(earlier))
        # The arguments are gone by now.
        passed = [read for read in earlier.values if read.kind == "argument"]
        taken = Snapshot((*snapshot(function).values, *passed))
        self._keep_snapshot(trace, taken, source)

    def _keep_snapshot(self, trace: "Trace", taken: Any, source: _Ref) -> None:
        kept = collections.deque[Kept](maxlen=_SNAPSHOTS)
        kept = self.snapshots.setdefault(trace.function.number, kept)
        kept.append(Kept(trace, taken, source))

    def _called(self, trace: "Trace", jitted: Any, arrays: list[Any]) -> None:
        seen = self.seen.get(trace.number)
        around = self._around.pop(trace.number, None)
        if seen is None or trace.inside is not None or not trace.retraced:
            return
        if self.programs:
            self._guarded(trace, ft.partial(self._keep_program, seen, jitted, arrays))
        key = trace.function.key()
        self._inspected[key] += 1
        if self._inspected[key] <= _INSPECTED:
            look = ft.partial(self._inspect, seen, jitted, arrays, around)
            self._guarded(trace, look)
        elif len(self.snapshots.get(trace.function.number, ())) < 2:
            # Another function of the same line, which ran the same code.
            self._guarded(trace, ft.partial(self._keep_read, trace, around))
        if self.numerics and self._inspected[key] == 1:
            self._guarded(trace, ft.partial(self._compare, seen, jitted, arrays))

    def _guarded(self, trace: "Trace", look: Callable[[], None]) -> None:
        """Inspect a trace, without failing the program or being counted as its own."""
        was_paused = self._paused
        self._pause(True)
        start = time.perf_counter()
        try:
            look()
        except Exception as e:
            why = f"{trace.function.qualname}: {type(e).__name__}: {str(e)[:200]}"
            self.notes.append(f"Could not inspect {why}")
        finally:
            self._pause(was_paused)
            self.own_seconds += time.perf_counter() - start

    def _pause(self, paused: bool) -> None:
        self._paused = self.plain.paused = self.waits.paused = paused

    def _inspect(
        self, seen: Seen, jitted: Any, arrays: list[Any], around: _Before | None
    ) -> None:
        from eqx_fastjit._describe import show_shape
        from eqx_fastjit._specialization import kept_trace
        from eqx_fastjit.insight._equations import read_jaxpr
        from eqx_fastjit.insight._jaxpr import inspect_scope
        from eqx_fastjit.insight._surroundings import executed

        scope = read_jaxpr(kept_trace(jitted, arrays).jaxpr)
        seen.inspection = inspect_scope(scope)
        seen.results = tuple(
            (str(v.aval.dtype), show_shape(v.aval.shape))
            for v in scope.jax.outvars
            if hasattr(v.aval, "dtype")
        )
        codes = self._executed.setdefault(seen.trace.function.key(), set())
        codes.update(executed(scope))
        self._keep_read(seen.trace, around)

    def _keep_read(self, trace: "Trace", around: _Before | None) -> None:
        from eqx_fastjit.insight._surroundings import read_by

        if around is not None:
            source, variables = around
            codes = self._executed.get(trace.function.key(), set())
            self._keep_snapshot(trace, read_by(codes, variables), source)

    def _keep_program(self, seen: Seen, jitted: Any, arrays: list[Any]) -> None:
        from eqx_fastjit._specialization import kept_trace

        from ._program import program_of

        text = f"Only the programs of the first {_PROGRAMS} compilations are kept."
        if sum(s.program is not None for s in self.seen.values()) < _PROGRAMS:
            seen.program = program_of(kept_trace(jitted, arrays))
        elif text not in self.notes:
            self.notes.append(text)

    def _compare(self, seen: Seen, jitted: Any, arrays: list[Any]) -> None:
        import jax

        from eqx_fastjit._specialization import result_of

        if any(isinstance(x, jax.Array) and x.is_deleted() for x in arrays):
            name = seen.trace.function.qualname
            self.notes.append(f"{name} donates its arguments, so it was not compared.")
            return
        results = result_of(jitted, arrays), result_of(jitted, arrays, eager=True)
        seen.deviations = deviations(*results)


def deviations(jitted: Any, eager: Any) -> list[Deviation]:
    """Where two results of one function differ, leaf by leaf."""
    import jax.numpy as jnp
    import jax.tree_util as jtu

    from eqx_fastjit.insight._numerics import compare

    flat, _ = jtu.tree_flatten_with_path(eager)
    leaves = {f"result{jtu.keystr(path)}": x for path, x in flat}
    scales = {path: _scale(x) for path, x in leaves.items()}
    largest = max([1.0, *scales.values()])
    return [
        Deviation(
            found.path,
            found.absolute or 0.0,
            scales[found.path],
            largest,
            float(jnp.finfo(leaves[found.path].dtype).eps),
            found.ulps,
            found.nan_mismatches + found.inf_mismatches,
        )
        for found in compare("", jitted, eager).leaves
        if found.ulps is not None  # floating-point numbers
    ]


def _scale(x: Any) -> float:
    """The largest finite value of a leaf; 0 if it is no array of numbers."""
    import jax
    import numpy as np

    is_array = isinstance(x, jax.Array | np.ndarray | np.generic)
    if not is_array or not jax.numpy.issubdtype(x.dtype, np.inexact):
        return 0.0
    values = np.abs(np.asarray(x).astype(np.complex128))
    return float(values[np.isfinite(values)].max(initial=0))
