"""Calls of jitted functions: how often, how long, and who waits for the device.

A `Calls` is the observer of the engine (`_blocking.Observer`), and so makes every call
while it is there. About one call in fifty is made alone: the device is done with all
that came before, and the call returns when its results are ready. The median, less
dispatch, is the time that the function takes on the device. Calls that compile are left
out. Nothing else is changed; of arrays, the smallest result of the latest call is kept,
as it tells when the device is done.

Only calls under this library's `filter_jit` are seen, of the thread that made the
object. Operations outside of jit and functions of plain `jax.jit` are not.
"""

# Of JAX's functions not all have types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import collections
import contextlib
import functools
import statistics
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
from jax.core import Tracer

from eqx_fastjit._blocking import Why
from eqx_fastjit._engine import observe
from eqx_fastjit._facts import FunctionInfo, is_compiling, Place
from eqx_fastjit._install import of_equinox
from eqx_fastjit._result import flat_output

from ._events import Event, unwatch, watch
from ._given import chain_of, Given
from ._private import hook_waits
from ._samples import Position
from ._statements import place_of
from ._waits import JITTED_CALL, Wait, Waits


# The most calls from one that is made alone to the next. A prime number, so that it is
# not always the same step of those that a program makes in turn.
_EVERY = 47
# The first calls, of each of which the arguments and the line are looked at; and those
# that are made slowly, so that the tool looks whether what was traced has changed.
_FIRST, _EARLY = 3, 94
# Seconds of calls from which on waits matter; and of a wait: in shorter
# ones the device was done, and a value was only copied.
_LEAST_SECONDS, _SHORTEST = 0.1, 50e-6
# The most seconds that a call takes for dispatch, and for each array that is given or
# returned. Of more, it copies, or computes. Where nothing is left to wait for, as in a
# call with a host callback on a CPU, only the latter counts.
_MOST_DISPATCH, _OF_ARRAY = 1e-3, 2e-5


class Timed:
    """The calls of one specialization. Those that compile are not counted."""

    def __init__(self, specialization: Any):
        flat = specialization.flat
        function = flat.function()
        self.flat = weakref.ref(flat)
        self.function: FunctionInfo = flat.info
        self.is_of_equinox = function in of_equinox
        self.donates = flat.options.donate != "none"
        self.given = Given(function)

        self.calls = 0
        # Which of them is to be made alone next.
        self.due = 0
        # Until the calls returned, in all.
        self.seconds = 0.0
        # Of the latest calls that were made alone: until the call returned, and until
        # its results were ready.
        self.alone = collections.deque[tuple[float, float]](maxlen=100)

        # Where calls that were looked at were made: the user's frames, innermost first.
        self.sites = collections.Counter[tuple[Position, ...]]()
        # Whether the user's code makes any of these, rather than a library.
        self.is_by_user = False
        # How many arrays it is given, and returns.
        self.n_arrays = 0
        # The index of the smallest result, and its type, which is no tracer's; of a
        # function without arrays among its results, those of the handle.
        self.smallest = 0
        self.kind: type = type(None)

    @property
    def is_due(self) -> bool:
        """Whether its next call is to be made alone."""
        return self.calls >= self.due

    @property
    def is_slow(self) -> bool:
        """Whether its next call is to be made slowly."""
        return self.calls < _EARLY or self.calls >= self.due

    def smallest_of(self, results: Sequence[Any]) -> Any:
        """The smallest result, by the shapes of the latest call that was made alone."""
        if self.is_due or self.smallest >= len(results):
            sizes = [getattr(x, "nbytes", 0) for x in results]
            self.smallest = sizes.index(min(sizes))
        self.kind = type(results[self.smallest])
        return results[self.smallest]

    @property
    def lines(self) -> list[Place]:
        """The lines of the user's that call it."""
        return [place_of(site[0]) for site in self.sites if site]

    @property
    def line(self) -> Place | None:
        """The first of these, if there is one."""
        return next(iter(self.lines), None)

    @property
    def dispatch(self) -> float:
        """Seconds of a call before anything is computed.

        The shortest one: a device that is a CPU may interrupt the call.
        """
        if not self.alone:
            return 0.0
        most = _OF_ARRAY * (1 + self.n_arrays)
        if statistics.median(ready / returned for returned, ready in self.alone) > 1.1:
            most = max(most, _MOST_DISPATCH)
        shortest = min(returned for returned, _ in self.alone)
        return shortest if shortest < most else 0.0

    @property
    def ready(self) -> float:
        """Seconds of a call until its results are ready."""
        return statistics.median([ready for _, ready in self.alone] or [0.0])

    @property
    def device(self) -> float:
        """Seconds that the device takes for a call."""
        return max(0.0, self.ready - self.dispatch)


class Calls(contextlib.ExitStack):
    """Within this context, makes all calls, and notes who waits for the device."""

    def __init__(self, look: Callable[[Any, Any], None] | None = None) -> None:
        super().__init__()
        self.thread = threading.get_ident()
        # Is shown what is called, and its arrays, before calls that are made slowly.
        self.look = look
        # The smallest result of the latest call: once it is ready, the device is done.
        self.result: Any = None
        # When the latest call that compiled nothing ended, if nothing compiled since.
        self.ended: float | None = None
        # Up to each call that compiled nothing, from the one before it, where nothing
        # compiled in between.
        self.seconds = 0.0

        self.waits = Waits()
        # Seconds of what is done here beside the calls; of that, for the device.
        self.own_seconds = self.own_waits = 0.0
        # Seconds in which arrays of NumPy were transferred; of these, those of a call
        # that has not returned.
        self.transfers = self._transferred = 0.0
        self.notes: list[str] = []
        # What was called, also if all calls compiled; and of that, what is there, by
        # the `id` of its function.
        self.timed: list[Timed] = []
        self._timed: dict[int, Timed] = {}

        # Whether what waits is not the program, or is known.
        self.is_unseen = False
        # Seconds of waits of the program; and of calls that block, but hardly.
        self._waited = self._short_waits = 0.0
        # When the latest wait ended.
        self._wait_ended = 0.0

    def __enter__(self) -> Self:
        # What this version of JAX does not have: waits in it are not seen.
        missing = hook_waits(self._watched, self)
        self.notes += [f"Waits in {x} are not seen." for x in missing]
        self.callback(observe, observe(self))
        watch(self._on_event)
        self.callback(unwatch, self._on_event)
        self.callback(self._let_go)
        return self

    def _let_go(self) -> None:
        """Keep no array any more."""
        self.result = self.look = None

    def _on_event(self, event: Event) -> None:
        self.ended = None

    # --- the calls ---

    # The engine asks it when a call begins.
    clock = staticmethod(time.perf_counter)

    def call(
        self,
        jitted: Any,
        specialization: Any,
        values: tuple[Any, ...],
        arrays: tuple[Any, ...],
        numpy_bytes: int,
        began: float | None,
    ) -> Any:
        """Make a call for the engine, and time it. Most calls are only timed.

        `began`: when the call began; `None` if the clock failed.
        """
        __tracebackhide__ = True
        if threading.get_ident() != self.thread:
            return jitted(*arrays)

        # Arrays of NumPy are transferred before anything else.
        if began is not None:
            began += self._transferred
        self._transferred = 0.0
        flat = specialization.flat
        timed = self._timed.get(id(flat))
        if timed is None or timed.flat() is not flat or timed.is_slow or began is None:
            return self._call_slowly(jitted, specialization, values, arrays, began)

        timed.given.check()
        out = jitted(*arrays)
        returned = time.perf_counter()
        try:
            results = flat_output(out)
            i = timed.smallest
            smallest = results[i] if i < len(results) else None
            if is_compiling():  # something was compiled for this call
                self.ended = None
            elif type(smallest) is timed.kind:  # no tracer's: it is no part of a trace
                self.result = smallest
                timed.calls += 1
                timed.seconds += returned - began
                self.seconds += returned - (self.ended or began)
                self.ended = returned
                if not timed.donates:
                    timed.given.note(arrays)
        except Exception as e:
            self._give_up(e)
        return out

    def _call_slowly(
        self,
        jitted: Any,
        specialization: Any,
        values: tuple[Any, ...],
        arrays: tuple[Any, ...],
        began: float | None,
    ) -> Any:
        """Make a call, look at what it is given, and maybe wait for the device."""
        __tracebackhide__ = True
        before = time.perf_counter()
        began = before if began is None else began
        seconds = before - began
        timed = self._before(specialization, arrays)

        start = time.perf_counter()
        out = jitted(*arrays)
        returned = time.perf_counter()

        self.own_seconds += start - before
        if timed is not None:
            seconds += returned - start
            self._after(timed, values, arrays, out, seconds, began)
            self.own_seconds += time.perf_counter() - returned
        return out

    def _before(self, specialization: Any, arrays: Sequence[Any]) -> Timed | None:
        """What is called, if nothing fails."""
        try:
            flat = specialization.flat
            timed = self._timed.get(id(flat))
            if timed is None or timed.flat() is not flat:
                timed = self._timed[id(flat)] = Timed(specialization)
                self.timed.append(timed)
            if self.look is not None:
                self.look(flat, arrays)
            timed.given.check()
            if timed.is_due and not any(isinstance(x, Tracer) for x in arrays):
                self._wait_for([self.result, *arrays])
            return timed
        except Exception as e:
            self._give_up(e)
            return None

    def _after(
        self,
        timed: Timed,
        values: tuple[Any, ...],
        arrays: Sequence[Any],
        out: Any,
        seconds: float,
        began: float,
    ) -> None:
        """A call has returned, `seconds` after it began."""
        try:
            *results, handle = flat_output(out)
            if any(isinstance(x, Tracer) for x in (*arrays, *results)):
                return  # it is a part of a trace

            has_compiled = is_compiling()
            is_looked_at = has_compiled or timed.is_due or timed.calls < _FIRST
            self.result = timed.smallest_of(results or [handle])
            if has_compiled:
                self.ended = None
            else:
                self._count(timed, results, seconds, began)
            if is_looked_at:
                self._look_closely(timed, values, arrays, results)
            elif not timed.donates:
                timed.given.note(arrays)
        except Exception as e:
            self._give_up(e)

    def _count(
        self, timed: Timed, results: Sequence[Any], seconds: float, began: float
    ) -> None:
        is_alone = timed.is_due
        timed.calls += 1
        timed.seconds += seconds
        if is_alone:
            waited = self._wait_for(results)
            waited -= self._wait_for(results)  # what it takes to ask for them
            timed.alone.append((seconds, seconds + max(0.0, waited)))
            timed.due += min(timed.calls, _EVERY)

        # Without what was done here, before the call and after it.
        self.seconds += seconds + (0.0 if self.ended is None else began - self.ended)
        self.ended = time.perf_counter()

    def _look_closely(
        self, timed: Timed, values: Any, arrays: Sequence[Any], results: Sequence[Any]
    ) -> None:
        chain = chain_of(sys._getframe(1))
        timed.sites[chain.positions] += 1
        timed.is_by_user |= chain.is_by_user
        timed.n_arrays = len(arrays) + len(results)
        timed.given.look_at_values(values)
        if not timed.donates:
            timed.given.look(values, arrays, results, chain)

    def _give_up(self, error: Exception) -> None:
        """A fault of this class must not be one of the program."""
        observe(None)
        self._let_go()
        self.notes.append(f"Calls were not timed to the end: {error!r}.")

    # --- waits ---

    def _wait_for(self, arrays: Iterable[Any]) -> float:
        """Wait until arrays are ready, but for those that are of NumPy, or deleted.

        **Returns:** the seconds of that.
        """
        start, self.is_unseen = time.perf_counter(), True
        try:
            there = (x for x in arrays if hasattr(x, "is_deleted"))
            jax.block_until_ready([x for x in there if not x.is_deleted()])
        except Exception:  # the program will meet it itself
            pass
        finally:
            self.is_unseen = False
        seconds = time.perf_counter() - start
        self.own_waits += seconds
        return seconds

    def wait(self, wait: Callable[[Any], Any], arrays: Sequence[Any], why: Why) -> None:
        """A call of the program's waits for the device."""
        self._watch(wait, "blocks", (arrays,), {}, why)

    def _watched(self, function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        """A function that may wait, whose waits are noted."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if kind == "numpy" and not (args and isinstance(args[0], jax.Array)):
                return function(*args, **kwargs)
            return self._watch(function, kind, args, kwargs)

        with contextlib.suppress(TypeError):  # what nanobind makes has odd names
            functools.update_wrapper(watched, function)
        return watched

    def _watch(
        self,
        function: Callable[..., Any],
        kind: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        why: str = "",
    ) -> Any:
        __tracebackhide__ = True
        if self.is_unseen or threading.get_ident() != self.thread:
            return function(*args, **kwargs)

        # Before waiting. After it, each microsecond of Python delays what is dispatched
        # next, and XLA's threads fall asleep meanwhile.
        wait = None
        try:
            if why != "transfer":
                wait = self.waits.of(kind, args, why)
        except Exception:  # of what a program has put in place of an array
            pass
        start, self.is_unseen = time.perf_counter(), True
        try:
            return function(*args, **kwargs)
        finally:
            self.is_unseen = False
            self._note_wait(start, kind, why, wait)

    def _note_wait(self, start: float, kind: str, why: str, wait: Wait | None) -> None:
        ended = time.perf_counter()
        seconds = ended - start
        if why == "transfer":
            self.transfers += seconds
            self._transferred += seconds
            return
        if kind == "blocks" and seconds < _SHORTEST:
            self._short_waits += seconds
            return
        if wait is None:
            return

        # The latest call says it: the first may have to, for what it has compiled.
        if wait.what == JITTED_CALL:
            wait.decides = why == "needed"
        wait.reads += 1
        wait.all_seconds += seconds
        if seconds < _SHORTEST:
            return
        wait.count += 1
        wait.seconds += seconds
        if self.ended is not None:
            # Had Python not waited, the device had had its next work so much earlier:
            # by no more than Python did since the wait before had ended.
            wait.ahead += min(seconds, start - self._wait_ended)
            if not wait.decides:
                self._waited += seconds
        self._wait_ended = ended

    # --- what is known by now ---

    def end_calls(self) -> None:
        """What the latest calls were given, and is still there, was kept."""
        for timed in self.timed:
            timed.given.check()

    def seconds_of_calls(self) -> "CallSeconds":
        """Where the seconds of calls and of waits went."""
        dispatch = sum(x.calls * x.dispatch for x in self.timed)
        rest = max(0.0, sum(x.seconds for x in self.timed) - dispatch)
        waits = sum(x.all_seconds for x in self.waits.found.values())
        waits += self.own_waits + self._short_waits
        return CallSeconds(
            dispatch=dispatch,
            device=rest + waits,
            transfers=self.transfers,
            doctor=max(0.0, self.own_seconds - self.own_waits),
        )

    @property
    def ahead(self) -> float:
        """Seconds that the program would have saved by waiting for nothing, at most."""
        if self.seconds <= _LEAST_SECONDS:
            return 0.0
        busy = sum(x.calls * x.device for x in self.timed)
        ahead = sum(x.ahead for x in self.waits.found.values() if not x.decides)
        # If the program waited for more, that was of operations outside of jit.
        return max(0.0, min(ahead, self.seconds - max(busy, self._waited)))


class CallSeconds(NamedTuple):
    """Seconds of calls that compiled nothing, and of all waits.

    The device has what a call takes beyond dispatch: it is busy, or the CPU itself,
    which also copies small arrays of NumPy. `transfers` are those before calls.
    """

    dispatch: float
    device: float
    transfers: float
    doctor: float
