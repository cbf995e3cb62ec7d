"""How long the device computes, and how long it waits for Python.

Within a `Device` context, about one call in fifty is made alone: the device is done
with all that came before, and the call returns when its results are ready. The median
is the time that the function takes on the device. What the calls do not take, of the
time between the first and the last of them, the device was idle. Calls that compile are
left out. Nothing else is changed; of arrays, the last result of the latest call is
kept, as it tells when the device is done.

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
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import jax
from jax.core import Tracer

from eqx_fastjit._blocking import Why
from eqx_fastjit._engine import observe
from eqx_fastjit._facts import is_compiling
from eqx_fastjit.insight._words import show_seconds

from ._events import Event, unwatch, watch
from ._private import hook_waits
from ._waits import Wait, wait_of


# The most calls from one that is made alone to the next. A prime number, so that it is
# not always the same step of those that a program makes in turn.
_EVERY = 47
# Seconds of calls from which on there is something to say; and of a wait: in shorter
# ones the device was done, and a value was only copied.
_LEAST_SECONDS, _SHORTEST = 0.1, 50e-6
# The most seconds that a call takes for dispatch. Of more, it copies, or computes.
_MOST_DISPATCH = 1e-3
# The share of the time from which on a device is said to have been idle; and the share
# of this idle time from which on something is named as a reason.
_LITTLE, _REASON = 0.05, 0.2


class _Timed:
    """A specialization's function of `jax.jit`, which is timed."""

    def __init__(self, device: "Device", jitted: Any, flat: Any):
        self._device, self._jitted, self._flat = device, jitted, weakref.ref(flat)
        # The calls that compiled nothing; which of them is to be made alone.
        self.calls = self.due = 0
        # Of the latest calls that were made alone: seconds until the call returned, and
        # until its results were ready.
        self.samples = collections.deque[tuple[float, float]](maxlen=100)

    def __call__(self, *arrays: Any) -> Any:
        __tracebackhide__ = True
        device, clock = self._device, time.perf_counter
        if threading.get_ident() != device.thread:
            return self._jitted(*arrays)
        is_due = self.calls >= self.due
        if device.look is not None and (is_due or self.calls < 2 * _EVERY):
            device.look(self._flat(), arrays)
        began = clock()
        if is_due:
            device.wait([device.result, *arrays])
        start = clock()
        out = self._jitted(*arrays)
        returned = clock()
        results = out[:-1] if type(out) is list else jax.tree.leaves(out[0])
        last = results[-1] if results else device.result
        if isinstance(last, Tracer):
            return out  # it is a part of a trace
        device.result = last
        if is_compiling():
            device.ended = None
            return out
        self.calls += 1
        if is_due:
            device.wait(results)
            self.samples.append((returned - start, clock() - start))
            self.due += min(self.calls, _EVERY)
        ended = clock()
        device.seconds += ended - (began if device.ended is None else device.ended)
        device.ended = ended
        return out


class Device(contextlib.ExitStack):
    """Within this context, times what the device does, and what waits for it."""

    def __init__(self, look: Callable[[Any, Any], None] | None = None) -> None:
        super().__init__()
        self.thread = threading.get_ident()
        # Is shown what is called, and its arrays, before most calls.
        self.look = look
        # The last result of the latest call: once it is ready, the device is done.
        self.result: Any = None
        # When the latest call that compiled nothing ended, if nothing compiled since.
        self.ended: float | None = None
        # Up to each call that compiled nothing, from the one before it, where nothing
        # compiled in between.
        self.seconds = 0.0
        self._all: list[_Timed] = []
        self._by_id: dict[int, _Timed] = {}
        self.waits: dict[Any, Wait] = {}
        # Whether what waits is not the program, or is known.
        self._is_unseen = False
        # Waits of the program. Had Python not waited, the device had had its next work
        # earlier: by the wait, but by no more than Python did since the one before.
        self._waited = self._ahead = self._free = 0.0

    def __enter__(self) -> Self:
        # What this version of JAX does not have: waits in it are not seen.
        self.missing = hook_waits(self._watched, self)
        self.callback(observe, observe(self))
        watch(self._on_event)
        self.callback(unwatch, self._on_event)
        return self

    def _on_event(self, event: Event) -> None:
        self.ended = None

    # --- what the engine asks and tells ---

    clock = staticmethod(time.perf_counter)

    def call(
        self,
        jitted: Any,
        specialization: Any,
        values: tuple[Any, ...],
        arrays: tuple[Any, ...],
        numpy_bytes: int,
        began: Any,
    ) -> Any:
        __tracebackhide__ = True
        timed = self._by_id.get(id(jitted))
        if timed is None:
            timed = _Timed(self, jitted, specialization.flat)
            self._by_id[id(jitted)] = timed
            self._all.append(timed)
        return timed(*arrays)

    @contextlib.contextmanager
    def waiting(self, arrays: Sequence[Any], why: Why) -> Iterator[None]:
        if self._is_unseen or threading.get_ident() != self.thread:
            yield
            return

        start, self._is_unseen = time.perf_counter(), True
        try:
            yield
        finally:
            ended, self._is_unseen = time.perf_counter(), False
            if ended - start >= _SHORTEST:
                self.waited(ended - start, ended, wait_of("blocks", (), why))

    def wait(self, arrays: Iterable[Any]) -> None:
        """Wait until arrays are ready, but for those that are of NumPy, or deleted."""
        self._is_unseen = True
        try:
            for x in arrays:
                with contextlib.suppress(Exception):  # the program will meet it itself
                    x.block_until_ready()
        finally:
            self._is_unseen = False

    def _watched(self, function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        """A function that may wait, whose waits are noted."""
        clock = time.perf_counter

        def watched(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            others = kind == "numpy" and not (args and isinstance(args[0], jax.Array))
            if others or self._is_unseen or threading.get_ident() != self.thread:
                return function(*args, **kwargs)
            start, self._is_unseen = clock(), True
            try:
                return function(*args, **kwargs)
            finally:
                ended, self._is_unseen = clock(), False
                if ended - start >= _SHORTEST or kind != "blocks":
                    self.waited(ended - start, ended, wait_of(kind, args))

        with contextlib.suppress(TypeError):  # what nanobind makes has odd names
            functools.update_wrapper(watched, function)
        return watched

    def waited(self, seconds: float, ended: float, by: Wait | None) -> None:
        """The program, or a jitted call, has waited for the device, which is done."""
        if by is None:
            return
        wait = self.waits.setdefault((by.place, by.what), by)
        wait.reads, wait.decides = wait.reads + 1, by.decides
        if seconds < _SHORTEST:
            return
        wait.count += 1
        wait.seconds += seconds
        if self.ended is not None and not wait.decides:
            self._waited += seconds
            self._ahead += min(seconds, ended - seconds - self._free)
            self._free = ended

    def use(self) -> "Use | None":
        """What is known by now; `None` if that is not worth a sentence."""
        if self.seconds <= _LEAST_SECONDS:
            return None
        calls, busy, dispatch = 0, 0.0, 0.0
        # (A call that Ctrl-C ended has no sample.)
        for timed in (x for x in self._all if x.samples):
            returned, ready = zip(*timed.samples, strict=True)
            # The shortest one: a device that is a CPU may interrupt the call.
            call = min(returned) if min(returned) < _MOST_DISPATCH else 0.0
            calls += timed.calls
            busy += timed.calls * (statistics.median(ready) - call)
            dispatch += timed.calls * call
        # If the program waited for more, that was of operations outside of jit.
        busy = min(self.seconds, max(busy, self._waited))
        ahead = min(self._ahead, self.seconds - busy)
        return Use(self.seconds, calls, busy, self._waited, ahead, dispatch)


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
        idle = self.seconds - self.busy
        when = f"of the {show_seconds(self.seconds)} from the first to the last call"
        when += " (without compilations)"
        if idle < _LITTLE * self.seconds:
            return (
                "The device was never idle for long: it computed for "
                f"{1 - idle / self.seconds:.0%} {when}, so nothing in dispatch matters "
                "here."
            )
        reasons: list[str] = []
        least = max(_LEAST_SECONDS, _REASON * idle)
        if self.dispatch >= least:
            reasons.append("its calls are short, and `lax.scan` over steps would help")
        if self.ahead >= least:
            reasons.append(
                "Python waits for results, and fewer reads or `--async` would help, by "
                f"{show_seconds(self.ahead)} at most"
            )
        why = "; ".join(reasons) or "Python does something else between the calls"
        return f"The device was idle for {idle / self.seconds:.0%} {when}: {why}."
