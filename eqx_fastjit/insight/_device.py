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
from dataclasses import field
from typing import Any, NamedTuple, Self

import jax
from jax.core import Tracer

from eqx_fastjit._engine import engine_module
from eqx_fastjit._facts import FunctionInfo
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


class _Sample(NamedTuple):
    """A call that was made alone: seconds until it returned, and from there."""

    call: float
    rest: float


@dataclasses.dataclass(eq=False)
class _Calls:
    """The calls of a specialization."""

    function: FunctionInfo
    # All, and which of them is to be made alone.
    made: int = 0
    due: int = 1
    # Those that compiled nothing.
    warm: int = 0
    samples: collections.deque[_Sample] = field(
        default_factory=lambda: collections.deque(maxlen=_KEPT)
    )
    # Arrays that are passed, and that are returned.
    sizes: tuple[int, int] = (0, 0)

    def is_asynchronous(self) -> bool:
        """Whether a call returns before its results are ready, as far as is known."""
        return bool(self.samples) and self.samples[-1].rest > self.samples[-1].call / 5

    def alone(self, n: int = 1) -> None:
        """One of so many calls that were made alone: decide which one is the next."""
        self.due = self.made + max(1, min(self.made, n * _EVERY))


class _Timed:
    """What a specialization calls: the function of `jax.jit`, which is timed."""

    def __init__(self, device: "Device", jitted: Any, flat: Any, calls: _Calls):
        self._device, self._jitted, self.calls = device, jitted, calls
        self._flat = weakref.ref(flat)

    def __getattr__(self, name: str) -> Any:  # `trace`, `lower`, ...
        return getattr(self._jitted, name)

    def __call__(self, *arrays: Any) -> Any:
        __tracebackhide__ = True
        device, calls, clock = self._device, self.calls, time.perf_counter
        if threading.get_ident() != device.thread:
            return self._jitted(*arrays)
        calls.made += 1
        if device.look is not None and calls.made > 1:
            device.look(self._flat(), arrays)
        if calls.made >= calls.due or device.waiting_for is not None:
            return self._call_alone(arrays)
        began = clock()
        out = self._jitted(*arrays)
        device.called(calls, began, clock(), _results_of(out))
        return out

    def _call_alone(self, arrays: tuple[Any, ...]) -> Any:
        __tracebackhide__ = True
        device, calls, clock = self._device, self.calls, time.perf_counter
        if any(isinstance(x, Tracer) for x in arrays):
            calls.made -= 1
            return self._jitted(*arrays)
        began = clock()
        is_alone = device.drain(arrays)
        start = clock()
        out = self._jitted(*arrays)
        returned = clock()
        results = _results_of(out)
        _wait(results)
        end = clock()
        if device.called(calls, began, end, results):
            calls.sizes = len(arrays), len(results)
            sample = _Sample(returned - start, end - returned)
            device.sampled(calls, sample if is_alone else None)
        return out


def _results_of(out: Any) -> list[Any]:
    """The arrays that the function of a specialization has returned."""
    return out[:-1] if type(out) is list else jax.tree.leaves(out[0])


def _wait(arrays: Iterable[Any]) -> None:
    """Wait until arrays are ready. What they raise, the program will meet by itself."""
    with unseen(), contextlib.suppress(Exception):
        for x in arrays:
            if isinstance(x, jax.Array) and not (
                isinstance(x, Tracer) or x.is_deleted()
            ):
                x.block_until_ready()


class _Call(NamedTuple):
    """A call that has returned; whether it compiled is said afterwards."""

    calls: _Calls
    began: float
    ended: float
    # Seconds of compilations since the call before.
    compiled: float


class Device(contextlib.ExitStack):
    """Within this context, times what the device does."""

    def __init__(self, look: Callable[[Any, Any], None] | None = None) -> None:
        super().__init__()
        self.thread = threading.get_ident()
        # Is shown what is called again, and its arrays, before each call.
        self.look = look
        # Those that are to be called next, alone, until patience is at an end.
        self.waiting_for: _Calls | None = None
        self._patience = 0
        self._all: list[_Calls] = []
        self._latest: _Call | None = None
        # Of the calls that have not compiled.
        self._began: float | None = None
        self._ended = self._compiled = 0.0
        self._compiled_since = 0.0
        # A result of the latest call: once it is ready, the device is done.
        self._result: Callable[[], Any] = lambda: None
        # Waits of the program since the latest call, and when the first one ended.
        self._waited = self._free = 0.0
        self._all_waits = self._ahead = 0.0

    def __enter__(self) -> Self:
        original, device = Function.jit, self

        @functools.wraps(original)
        def jit(function: Function, flat: Any, kwargs: dict[str, Any]) -> Any:
            calls = _Calls(function.info)
            device._all.append(calls)
            return _Timed(device, original(function, flat, kwargs), flat, calls)

        setattr(Function, "jit", jit)  # noqa: B010
        self.callback(setattr, Function, "jit", original)
        watch(self._on_event)
        self.callback(unwatch, self._on_event)
        return self

    # --- calls ---

    def drain(self, arrays: Iterable[Any]) -> bool:
        """Wait until the device is done, if it is known by which arrays."""
        result = self._result()
        _wait([result, *arrays])
        return result is not None or self.waiting_for is not None

    def called(
        self, calls: _Calls, began: float, ended: float, results: list[Any]
    ) -> bool:
        """A call has returned. Returns whether it ran anything on the device."""
        first = results[0] if results else None
        if isinstance(first, Tracer):  # it is a part of a trace
            calls.made -= 1
            return False
        self._commit()
        self._latest = _Call(calls, began, ended, self._compiled_since)
        self._compiled_since = 0.0
        # NumPy arrays and others cannot be referred to weakly.
        is_array = isinstance(first, jax.Array)
        self._result = weakref.ref(first) if is_array else lambda: None
        if self._waited:
            # Had Python not waited, it would have come here earlier: by its wait, but
            # not before the device was done.
            begins = ended if calls.is_asynchronous() else began
            self._ahead += max(0.0, min(self._waited, begins - self._free))
            self._waited = 0.0
        return True

    def sampled(self, calls: _Calls, sample: _Sample | None) -> None:
        """A call was made alone; without a sample if something may have been before."""
        if sample is not None:
            calls.samples.append(sample)
            calls.alone(1 if self.waiting_for is None else 2)
            if calls is self.waiting_for:
                self.waiting_for = None
        elif self.waiting_for is None:
            self.waiting_for, self._patience = calls, _PATIENCE
        if self.waiting_for is not None:
            self._patience -= 1
            if self._patience < 0:
                self.waiting_for.alone()
                self.waiting_for = None

    def waited(self, seconds: float, ended: float) -> None:
        """The program has waited for the device, which is done now."""
        if self._began is None or threading.get_ident() != self.thread:
            return
        self._free = self._free if self._waited else ended
        self._waited += seconds
        self._all_waits += seconds

    def _on_event(self, event: Event) -> None:
        if threading.get_ident() != self.thread:
            return
        active, latest = engine_module().active(), self._latest
        if event.is_outside or event.ahead:
            if active is None or event.ahead:
                self._compiled_since += event.trace + event.lower + event.compile
        elif not event.is_part and isinstance(active.jitted, _Timed):
            calls = active.jitted.calls
            if latest is None or latest.calls is not calls:
                return  # it raised
            self._latest = None
            if calls.samples:
                calls.samples.clear()  # all of them before the program was another one
            calls.due = min(calls.due, calls.made + 1)
            self._compiled_since += latest.compiled + time.perf_counter() - latest.began

    def _commit(self) -> None:
        """The latest call has compiled nothing."""
        if (latest := self._latest) is None:
            return
        self._latest = None
        latest.calls.warm += 1
        if self._began is None:
            self._began = latest.began
        else:
            self._compiled += latest.compiled
        self._ended = latest.ended

    # --- afterwards ---

    def use(self) -> "Use | None":
        """What is known by now; `None` if nothing was called twice."""
        self._commit()
        if self._began is None:
            return None
        found = sorted((c for c in self._all if c.warm), key=lambda c: -c.warm)
        rows: dict[Any, list[_Calls]] = {}
        for calls in found:
            rows.setdefault(calls.function.key(), []).append(calls)
        overhead = {c: _overhead(*c.sizes) for c in found[:_MEASURED] if c.samples}
        functions = [
            FunctionUse(
                name_of(group[0].function),
                sum(c.warm for c in group),
                sum(c.warm * _on_device(c, overhead.get(c, 0.0)) for c in group),
            )
            for group in rows.values()
        ]
        return Use(
            seconds=max(self._ended - self._began - self._compiled, 0.0),
            functions=tuple(sorted(functions, key=lambda f: -f.seconds)),
            waited=self._all_waits,
            ahead=self._ahead,
            dispatch=sum(c.warm * x for c, x in overhead.items()),
        )


def _on_device(calls: _Calls, overhead: float) -> float:
    """Seconds that a call takes on the device."""
    if not calls.samples:
        return 0.0
    rest = statistics.median(x.rest for x in calls.samples)
    whole = statistics.median(x.call + x.rest for x in calls.samples)
    return max(rest, whole - overhead)


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
    """The calls of the functions that one line made, but those that compiled."""

    function: str
    calls: int
    # On the device, of all calls.
    seconds: float


@dataclasses.dataclass(frozen=True)
class Use:
    """What the device did from the first to the last call that compiled nothing."""

    # From the one to the other, without compilations.
    seconds: float
    # Those that the device spent most on first.
    functions: tuple[FunctionUse, ...]
    # The program waited for the device; and what it would save to run ahead of it.
    waited: float
    ahead: float
    # Of the calls, before anything is computed.
    dispatch: float

    @property
    def busy(self) -> float:
        """Seconds that the device computed."""
        known = sum(f.seconds for f in self.functions)
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
        if self.saved_by_running_ahead() >= _REASON * idle:
            reasons.append("Python waits for values, and fewer reads would help")
        if not reasons:
            reasons.append("Python does something else between the calls")
        return (
            f"The device was idle for {self.idle:.0%} {when} (without compilations): "
            f"{'; '.join(reasons)}."
        )
