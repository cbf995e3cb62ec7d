"""How long the device computes, and how long it waits for Python.

Within a `Device` context, about one call in fifty is made alone: the device is done
with all that came before, and the call returns when its results are ready. The median
is the time that the function takes on the device. What the calls do not take, of the
time between the first and the last of them, the device was idle. Calls that compile are
left out. Nothing else is changed, and no array is kept.

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
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

import jax
from jax.core import Tracer

from eqx_fastjit._engine import ENGINE
from eqx_fastjit._facts import is_compiling
from eqx_fastjit._function import Function

from ._events import Event, unwatch, watch
from ._timing import time_call
from ._waits import unseen
from ._why import name_of
from ._words import show_seconds


# The most calls from one that is made alone to the next. A prime number, so that it is
# not always the same step of those that a program makes in turn.
_EVERY = 47
# Calls that are made alone, one after the other, to find the device without work where
# a program drops all results.
_PATIENCE = 20
# The samples that are kept of a specialization.
_KEPT = 1000
# Specializations, with the most calls, of which the overhead of a call is measured.
_MEASURED = 5
# The share of the time from which on a device is said to have been idle; and the share
# of this idle time from which on something is named as a reason.
_LITTLE, _REASON = 0.05, 0.3


_CALLS_BLOCK = "calls block until their results are ready, and `--async` would help"
_READS = "Python waits for values, and fewer reads would help"


class _Sample(NamedTuple):
    """A call that was made alone: seconds until it returned, and from there."""

    call: float
    rest: float


class _Timed:
    """What a specialization calls: the function of `jax.jit`, which is timed."""

    def __init__(self, device: "Device", jitted: Any, flat: Any):
        self._device, self._jitted, self._flat = device, jitted, weakref.ref(flat)
        self.function = flat.info
        # All calls; which of them is to be made alone; those that compiled nothing.
        self.made, self.due, self.warm = 0, 1, 0
        self.samples: collections.deque[_Sample] = collections.deque(maxlen=_KEPT)
        # Arrays that are passed, and that are returned.
        self.sizes = 0, 0

    def __getattr__(self, name: str) -> Any:  # `trace`, `lower`, ...
        return getattr(self._jitted, name)

    def __call__(self, *arrays: Any) -> Any:
        __tracebackhide__ = True
        device, clock = self._device, time.perf_counter
        if threading.get_ident() != device.thread:
            return self._jitted(*arrays)
        if device.look is not None and self.made:
            device.look(self._flat(), arrays)
        is_due = self.made + 1 >= self.due or device.waiting_for is not None
        began = start = clock()
        is_alone = is_due and device.drain(arrays)
        if is_due:
            start = clock()
        out = self._jitted(*arrays)
        ended = returned = clock()
        results = out[:-1] if type(out) is list else jax.tree.leaves(out[0])
        if results and isinstance(results[0], Tracer):
            return out  # it is a part of a trace
        self.made += 1
        if is_compiling():
            device.compiles(began)
            # All before, the program was another one.
            self.samples.clear()
            self.due = self.made + 1
            return out
        if is_due:
            _wait(results)
            ended = clock()
            self.sizes = len(arrays), len(results)
            sample = _Sample(returned - start, ended - returned)
            device.sampled(self, sample if is_alone else None)
        self.warm += 1
        device.called(began, ended, results)
        return out

    def alone(self, n: int = 1) -> None:
        """One of so many calls that were made alone: decide which one is the next."""
        self.due = self.made + max(1, min(self.made, n * _EVERY))

    def on_device(self, overhead: float) -> float:
        """Seconds that a call takes on the device."""
        if not self.samples:
            return 0.0
        rest = statistics.median(x.rest for x in self.samples)
        whole = statistics.median(x.call + x.rest for x in self.samples)
        return max(rest, whole - overhead)


def _wait(arrays: Iterable[Any]) -> None:
    """Wait until arrays are ready. What they raise, the program will meet by itself."""
    with unseen(), contextlib.suppress(Exception):
        for x in arrays:
            if isinstance(x, jax.Array) and not (
                isinstance(x, Tracer) or x.is_deleted()
            ):
                x.block_until_ready()


class Device(contextlib.ExitStack):
    """Within this context, times what the device does."""

    def __init__(self, look: Callable[[Any, Any], None] | None = None) -> None:
        super().__init__()
        self.thread = threading.get_ident()
        # Is shown what is called again, and its arrays, before each call.
        self.look = look
        # Until this one is called alone, all are, if patience is not at an end.
        self.waiting_for: _Timed | None = None
        self._patience = 0
        self._all: list[_Timed] = []
        # The first and the last call that compiled nothing, and what was spent on
        # compiling between them, and since. `_compiles` is when a call began that did.
        self._began: float | None = None
        self._ended = self._compiled = self._since = 0.0
        self._compiles: float | None = None
        # A result of the latest call: once it is ready, the device is done.
        self._result: Callable[[], Any] = lambda: None
        # Waits of the program since the latest call, and when the first one ended.
        self._waited = self._free = 0.0
        self._all_waits = self._by_calls = self._ahead = 0.0

    def __enter__(self) -> Self:
        original, device = Function.jit, self

        @functools.wraps(original)
        def jit(function: Function, flat: Any, kwargs: dict[str, Any]) -> Any:
            device._all.append(_Timed(device, original(function, flat, kwargs), flat))
            return device._all[-1]

        setattr(Function, "jit", jit)  # noqa: B010
        self.callback(setattr, Function, "jit", original)
        watch(self._on_event)
        self.callback(unwatch, self._on_event)
        return self

    def drain(self, arrays: Iterable[Any]) -> bool:
        """Wait until the device is done, if it is known by which arrays."""
        result = self._result()
        _wait([result, *arrays])
        return result is not None or self.waiting_for is not None

    def called(self, began: float, ended: float, results: list[Any]) -> None:
        """A call that compiled nothing has returned."""
        if self._began is None:
            self._began = began
        else:
            self._compiled += self._since
        self._ended, self._since = ended, 0.0
        # NumPy arrays and others cannot be referred to weakly.
        is_array = bool(results) and isinstance(results[0], jax.Array)
        self._result = weakref.ref(results[0]) if is_array else lambda: None
        if self._waited:
            # Had Python not waited, the device had had this call's work earlier: by
            # the wait, but not before it was done.
            self._ahead += max(0.0, min(self._waited, ended - self._free))
            self._waited = 0.0

    def sampled(self, timed: _Timed, sample: _Sample | None) -> None:
        """A call was made alone; without a sample if something may have been before."""
        if sample is not None:
            timed.samples.append(sample)
            timed.alone(1 if self.waiting_for is None else 2)
            if timed is self.waiting_for:
                self.waiting_for = None
        elif self.waiting_for is None:
            self.waiting_for, self._patience = timed, _PATIENCE
        if self.waiting_for is not None:
            self._patience -= 1
            if self._patience < 0:
                self.waiting_for.alone()
                self.waiting_for = None

    def waited(self, seconds: float, ended: float, by_call: bool = False) -> None:
        """The program, or a jitted call, has waited for the device, which is done."""
        if self._began is None or threading.get_ident() != self.thread:
            return
        self._free = self._free if self._waited else ended
        self._waited += seconds
        self._all_waits += seconds
        self._by_calls += by_call * seconds

    def compiles(self, began: float) -> None:
        """A call has returned that compiled; its event comes when all is described."""
        self._compiles = began

    def _on_event(self, event: Event) -> None:
        if threading.get_ident() != self.thread:
            return
        if event.ahead or (event.is_outside and ENGINE.active() is None):
            self._since += event.trace + event.lower + event.compile
        elif not (event.is_outside or event.is_part) and self._compiles is not None:
            self._since += time.perf_counter() - self._compiles
            self._compiles = None

    def use(self) -> "Use | None":
        """What is known by now; `None` if nothing was called twice."""
        if self._began is None:
            return None
        found = sorted((c for c in self._all if c.warm), key=lambda c: -c.warm)
        overhead = {c: _overhead(*c.sizes) for c in found[:_MEASURED] if c.samples}
        functions: dict[str, FunctionUse] = {}
        for c in found:
            name, seconds = name_of(c.function), c.on_device(overhead.get(c, 0.0))
            known = functions.get(name, FunctionUse(0, 0.0))
            functions[name] = FunctionUse(
                known.calls + c.warm, known.seconds + c.warm * seconds
            )
        return Use(
            seconds=max(self._ended - self._began - self._compiled, 0.0),
            functions=functions,
            waited=self._all_waits,
            by_calls=self._by_calls,
            ahead=self._ahead,
            dispatch=sum(c.warm * x for c, x in overhead.items()),
        )


@functools.cache
def _overhead(n_arguments: int, n_results: int) -> float:
    """Seconds of a call that computes almost nothing, until its results are ready."""

    def little(*arrays: Any) -> list[Any]:
        first = arrays[0] if arrays else 0.0
        return [first + i for i in range(n_results)]

    call = functools.partial(
        jax.jit(little, keep_unused=True), *[jax.numpy.zeros(())] * n_arguments
    )
    time_call(call)
    return statistics.median(time_call(call)[1] for _ in range(30))


class FunctionUse(NamedTuple):
    """The calls of a function, but those that compiled, and all their device time."""

    calls: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Use:
    """What the device did from the first to the last call that compiled nothing."""

    # From the one to the other, without compilations.
    seconds: float
    # By name.
    functions: dict[str, FunctionUse]
    # The program waited for the device, and how much of that was jitted calls that
    # block; and what it would save to run ahead of it.
    waited: float
    by_calls: float
    ahead: float
    # Of the calls, before anything is computed.
    dispatch: float

    @property
    def busy(self) -> float:
        """Seconds that the device computed."""
        known = sum(f.seconds for f in self.functions.values())
        # If the program waited for more, that was of operations outside of jit.
        return min(self.seconds, max(known, self.waited))

    @property
    def idle(self) -> float:
        """The share of the time that the device waited for Python."""
        return 1 - self.busy / self.seconds if self.seconds else 0.0

    def saved_by_running_ahead(self) -> float:
        """Seconds that not one wait would save, at most."""
        return min(self.ahead, self.seconds - self.busy)

    def __str__(self) -> str:
        """Whether dispatch matters, in a sentence."""
        when = f"of the {show_seconds(self.seconds)} from the first to the last call"
        if self.idle < _LITTLE:
            return (
                f"The device was never idle for long: it computed for "
                f"{1 - self.idle:.0%} {when} (without compilations), so nothing in "
                "dispatch matters here."
            )
        idle = self.seconds - self.busy
        reasons: list[str] = []
        if self.dispatch >= _REASON * idle:
            reasons.append("its calls are short, and `lax.scan` over steps would help")
        ahead = self.saved_by_running_ahead()
        if ahead >= _REASON * idle:
            by_calls = 2 * self.by_calls > self.waited
            most = f", by {show_seconds(ahead)} at most"
            reasons.append((_CALLS_BLOCK if by_calls else _READS) + most)
        if not reasons:
            reasons.append("Python does something else between the calls")
        return (
            f"The device was idle for {self.idle:.0%} {when} (without compilations): "
            f"{'; '.join(reasons)}."
        )
