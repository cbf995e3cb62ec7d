"""Calls of jitted functions: how often, how long, and what the device does.

A `Calls` is the observer of the engine (`_blocking.Observer`), and so makes every call
while it is there. About one call in fifty is made alone: the device is done with all
that came before, and the call returns when its results are ready. The median is the
time that the function takes on the device. What the calls do not take, of the time
between the first and the last of them, the device was idle. Calls that compile are left
out. Nothing else is changed; of arrays, the smallest result of the latest call is kept,
as it tells when the device is done.

Only calls under this library's `filter_jit` are seen, of the thread that entered the
context. Operations outside of jit and functions of plain `jax.jit` are not.
"""

# Of JAX's functions not all have types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import collections
import contextlib
import dataclasses
import functools
import statistics
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import jax
from jax.core import Tracer

from eqx_fastjit._blocking import Why
from eqx_fastjit._engine import observe
from eqx_fastjit._facts import FunctionInfo, is_compiling, Place
from eqx_fastjit._install import is_of_equinox
from eqx_fastjit._result import flat_output
from eqx_fastjit.insight._words import show_seconds

from ._events import Event, unwatch, watch
from ._given import chain_of, Given
from ._private import hook_waits
from ._samples import Position
from ._statements import place_of
from ._waits import Wait, wait_of


# The most calls from one that is made alone to the next. A prime number, so that it is
# not always the same step of those that a program makes in turn.
_EVERY = 47
# The first calls, which are all looked at.
_FIRST = 3
# Seconds of calls from which on there is something to say; and of a wait: in shorter
# ones the device was done, and a value was only copied.
_LEAST_SECONDS, _SHORTEST = 0.1, 50e-6
# The most seconds that a call takes for dispatch. Of more, it copies, or computes.
_MOST_DISPATCH = 1e-3
# The share of the time from which on a device is said to have been idle.
_LITTLE = 0.05


class Timed:
    """The calls of one specialization. Those that compile are not counted."""

    def __init__(self, specialization: Any):
        flat = specialization.flat
        function = flat.function()
        self.flat = weakref.ref(flat)
        self.function: FunctionInfo = flat.info
        self.is_of_equinox = is_of_equinox(function)
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
        self.numpy_bytes = 0
        # Where calls that were looked at were made: the user's frames, innermost first.
        self.sites = collections.Counter[tuple[Position, ...]]()
        self._smallest: int | None = None

    @property
    def is_due(self) -> bool:
        """Whether its next call is to be made alone."""
        return self.calls >= self.due

    def smallest_of(self, results: Sequence[Any]) -> int:
        """The index of the smallest result, which is the same in all calls."""
        if self._smallest is None:
            sizes = [getattr(x, "nbytes", 0) for x in results]
            self._smallest = sizes.index(min(sizes))
        return self._smallest

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
        shortest = min((returned for returned, _ in self.alone), default=0.0)
        return shortest if shortest < _MOST_DISPATCH else 0.0

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
        # Is shown what is called, and its arrays, before most calls.
        self.look = look
        # The smallest result of the latest call: once it is ready, the device is done.
        self.result: Any = None
        # When the latest call that compiled nothing ended, if nothing compiled since.
        self.ended: float | None = None
        # Up to each call that compiled nothing, from the one before it, where nothing
        # compiled in between.
        self.seconds = 0.0
        self.waits: dict[Any, Wait] = {}
        # Seconds of what is done here beside the calls; of that, for the device.
        self.own_seconds = self.own_waits = 0.0
        # Seconds in which arrays of NumPy were transferred.
        self.transfers = 0.0
        self.notes: list[str] = []
        self._timed: dict[int, Timed] = {}
        # Whether what waits is not the program, or is known.
        self._is_unseen = False
        # Waits of the program. Had Python not waited, the device had had its next work
        # earlier: by the wait, but by no more than Python did since the one before.
        self._waited = self._ahead = self._free = 0.0

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

    @property
    def timed(self) -> list[Timed]:
        """What was called."""
        return [x for x in self._timed.values() if x.calls]

    # --- the calls ---

    def clock(self) -> tuple[float, float]:
        """When a call begins, and what transfers took by then."""
        return time.perf_counter(), self.transfers

    def call(
        self,
        jitted: Any,
        specialization: Any,
        values: tuple[Any, ...],
        arrays: tuple[Any, ...],
        numpy_bytes: int,
        began: Any,
    ) -> Any:
        """Make a call for the engine, and time it."""
        __tracebackhide__ = True
        if threading.get_ident() != self.thread:
            return jitted(*arrays)

        before = time.perf_counter()
        seconds = 0.0
        if began is not None:  # what the engine did since, but for transfers
            seconds = before - began[0] - (self.transfers - began[1])
        timed = self._before(specialization, arrays)

        start = time.perf_counter()
        out = jitted(*arrays)
        returned = time.perf_counter()

        self.own_seconds += start - before
        if timed is not None:
            timed.numpy_bytes += numpy_bytes
            seconds += returned - start
            self._after(timed, values, arrays, out, seconds, before)
            self.own_seconds += time.perf_counter() - returned
        return out

    def _before(self, specialization: Any, arrays: Sequence[Any]) -> Timed | None:
        """What is called, if nothing fails."""
        try:
            flat = specialization.flat
            timed = self._timed.get(id(flat))
            if timed is None or timed.flat() is not flat:
                timed = self._timed[id(flat)] = Timed(specialization)
            if self.look is not None and (timed.is_due or timed.calls < 2 * _EVERY):
                self.look(flat, arrays)
            timed.given.check()
            if timed.is_due:
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
        before: float,
    ) -> None:
        """A call has returned, `seconds` after it began."""
        *results, _ = flat_output(out)
        if results and isinstance(results[-1], Tracer):
            return  # it is a part of a trace

        try:
            has_compiled = is_compiling()
            is_looked_at = has_compiled or timed.is_due or timed.calls < _FIRST
            if results:
                self.result = results[timed.smallest_of(results)]
            if has_compiled:
                self.ended = None
            else:
                self._count(timed, results, seconds, before)
            if is_looked_at:
                self._look_closely(timed, values, arrays, results)
            elif not timed.donates:
                timed.given.note(arrays)
        except Exception as e:
            self._give_up(e)

    def _count(
        self, timed: Timed, results: Sequence[Any], seconds: float, before: float
    ) -> None:
        is_alone = timed.is_due
        timed.calls += 1
        timed.seconds += seconds
        if is_alone:
            waited = self._wait_for(results)
            waited -= self._wait_for(results)  # what it takes to ask for them
            timed.alone.append((seconds, seconds + max(0.0, waited)))
            timed.due += min(timed.calls, _EVERY)

        ended = time.perf_counter()
        self.seconds += ended - (before if self.ended is None else self.ended)
        self.ended = ended

    def _look_closely(
        self, timed: Timed, values: Any, arrays: Sequence[Any], results: Sequence[Any]
    ) -> None:
        chain = chain_of(sys._getframe(1))
        timed.sites[chain.positions] += 1
        timed.given.look_at_numpy(values)
        if not timed.donates:
            timed.given.look(values, arrays, results, chain)

    def _give_up(self, error: Exception) -> None:
        """A fault of this class must not be one of the program."""
        observe(None)
        self.notes.append(f"Calls were not timed to the end: {error!r}.")

    # --- waits ---

    def _wait_for(self, arrays: Iterable[Any]) -> float:
        """Wait until arrays are ready, but for those that are of NumPy, or deleted.

        **Returns:** the seconds of that.
        """
        start, self._is_unseen = time.perf_counter(), True
        try:
            for x in arrays:
                with contextlib.suppress(Exception):  # the program will meet it itself
                    x.block_until_ready()
        finally:
            self._is_unseen = False
        seconds = time.perf_counter() - start
        self.own_waits += seconds
        return seconds

    @contextlib.contextmanager
    def waiting(self, arrays: Sequence[Any], why: Why) -> Iterator[None]:
        """A call of the program's waits for the device."""
        if self._is_unseen or threading.get_ident() != self.thread:
            yield
            return

        start, self._is_unseen = time.perf_counter(), True
        try:
            yield
        finally:
            self._is_unseen = False
            if why == "transfer":
                self.transfers += time.perf_counter() - start
            else:
                self._note_wait(start, "blocks", (), why)

    def _watched(self, function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        """A function that may wait, whose waits are noted."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            others = kind == "numpy" and not (args and isinstance(args[0], jax.Array))
            if others or self._is_unseen or threading.get_ident() != self.thread:
                return function(*args, **kwargs)

            start, self._is_unseen = time.perf_counter(), True
            try:
                return function(*args, **kwargs)
            finally:
                self._is_unseen = False
                self._note_wait(start, kind, args)

        with contextlib.suppress(TypeError):  # what nanobind makes has odd names
            functools.update_wrapper(watched, function)
        return watched

    def _note_wait(
        self, start: float, kind: str, args: Sequence[Any], why: str = ""
    ) -> None:
        ended = time.perf_counter()
        if kind == "blocks" and ended - start < _SHORTEST:
            return
        with contextlib.suppress(Exception):
            self.waited(ended - start, ended, wait_of(kind, args, why))

    def waited(self, seconds: float, ended: float, by: Wait | None) -> None:
        """The program, or a jitted call, has waited for the device, which is done."""
        if by is None:
            return

        wait = self.waits.setdefault((by.place, by.what), by)
        wait.reads, wait.decides = wait.reads + 1, by.decides
        wait.all_seconds += seconds
        if seconds < _SHORTEST:
            return
        wait.count += 1
        wait.seconds += seconds
        if self.ended is not None and not wait.decides:
            self._waited += seconds
            self._ahead += min(seconds, ended - seconds - self._free)
            self._free = ended

    # --- what is known by now ---

    def seconds_of_calls(self) -> "CallSeconds":
        """Where the seconds of calls and of waits went."""
        dispatch = sum(x.calls * x.dispatch for x in self.timed)
        rest = max(0.0, sum(x.seconds for x in self.timed) - dispatch)
        moved = sum(x.calls * x.given.seconds_to_move for x in self.timed)
        moved = min(rest, moved)
        waits = sum(x.all_seconds for x in self.waits.values()) + self.own_waits
        return CallSeconds(
            dispatch=dispatch,
            device=rest - moved + waits,
            transfers=moved + self.transfers,
            doctor=max(0.0, self.own_seconds - self.own_waits),
        )

    def use(self) -> "Use | None":
        """What the device did; `None` if that is not worth a sentence."""
        if self.seconds <= _LEAST_SECONDS:
            return None

        calls = sum(x.calls for x in self.timed)
        busy = sum(x.calls * x.device for x in self.timed)
        dispatch = sum(x.calls * x.dispatch for x in self.timed)
        # If the program waited for more, that was of operations outside of jit.
        busy = min(self.seconds, max(busy, self._waited))
        ahead = min(self._ahead, self.seconds - busy)
        return Use(self.seconds, calls, busy, self._waited, ahead, dispatch)


class CallSeconds(NamedTuple):
    """Seconds of calls that compiled nothing, and of all waits.

    The device has what a call takes beyond dispatch: it is busy, or the CPU itself.
    """

    dispatch: float
    device: float
    transfers: float
    doctor: float


@dataclasses.dataclass(frozen=True)
class Use:
    """What the device did from the first to the last call that compiled nothing."""

    # From the one to the other, without what compilations interrupt.
    seconds: float
    calls: int
    # Of these seconds, those in which the device computed.
    busy: float
    # The program waited for the device; and what not one wait would save, at most.
    waited: float
    ahead: float
    # Of the calls, before anything is computed.
    dispatch: float

    def __str__(self) -> str:
        """Whether dispatch matters, in a sentence."""
        share = self.busy / self.seconds
        when = f"of the {show_seconds(self.seconds)} from the first to the last call"
        when += " (without compilations)"
        if 1 - share < _LITTLE:
            return (
                f"The device was never idle for long: it computed for {share:.0%} "
                f"{when}, so nothing in dispatch matters here."
            )
        dispatch = f"dispatch took {show_seconds(self.dispatch)}"
        return f"The device was idle for {1 - share:.0%} {when}; {dispatch} of it."
