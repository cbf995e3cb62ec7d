"""Timing contenders against each other, in interleaved rounds in one process.

In each round all contenders take turns, so they see the same noise, and ratios are
taken within rounds. In a round, a contender calls at least ten compiled functions, and
for about four milliseconds if they take less; of a loop, it runs iterations for 150. A
first call is a round. Before other rounds, up to three calls are not timed: a garbage
collection displaces the CPU's caches, and the first calls after it take up to 2.6 times
as long.
"""

import contextlib
import functools as ft
import gc
import math
import operator
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from .case import Call, Case


# A round is long enough for the resolution of the clock not to matter.
_ROUND_SECONDS = 4e-3
_LOOP_SECONDS = 0.15
_ROUND_CALLS = 10
_COLD_CALLS = 3
# Python specializes its bytecode, and allocators and caches fill.
_WARM_CALLS = 40
_WARM_SECONDS = 0.5
# JAX's CPU and GPU clients make a call block if more than 32 computations are waiting.
_IN_FLIGHT = 30


class OutputsDiffer(Exception):
    """Two contenders return different results."""


class Interval(NamedTuple):
    """A median, with the ends of its confidence interval."""

    low: float
    median: float
    high: float


def interval(values: list[float]) -> Interval:
    """The median of at least one value, with its 95% confidence interval.

    The interval is between two of the ordered values. How many lie below the true
    median is binomial, whatever the distribution of the values. Fewer than six are too
    few for 95%: their interval is from the least to the greatest.
    """
    ordered = sorted(values)
    n = len(ordered)
    # How many values the interval may leave out at either end.
    outside, probability = 0, 0.0
    for k in range((n + 1) // 2):
        probability += math.comb(n, k) / 2**n
        if 2 * probability > 0.05:
            break
        outside = k

    median = statistics.median(ordered)
    return Interval(ordered[outside], median, ordered[n - 1 - outside])


def ratios(times: dict[str, list[float]], rival: str) -> list[float]:
    """Ours over a rival, in each round; empty if one of them was not timed."""
    ours, theirs = times.get("ours", []), times.get(rival, [])
    if not ours or not theirs:
        return []
    return [a / b for a, b in zip(ours, theirs, strict=True)]


# --- equal results --------------------------------------------------------------------


def _arrays(call: Call) -> list[np.ndarray]:
    def on_host(x: jax.Array) -> np.ndarray:
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        return np.asarray(x)

    out = call()
    if isinstance(out, float | int):  # of a loop, which has waited for it
        return [np.asarray(out)]
    return [on_host(x) for x in jax.tree.leaves(eqx.filter(out, eqx.is_array))]


def _same(x: np.ndarray, y: np.ndarray) -> bool:
    # XLA may reorder float32 operations.
    same_type = x.dtype == y.dtype and x.shape == y.shape
    return same_type and np.allclose(x, y, rtol=1e-4, atol=1e-5)


def check_equal(calls: dict[str, Call]) -> None:
    """Raise `OutputsDiffer` unless all contenders return the same arrays."""
    outputs = {name: _arrays(call) for name, call in calls.items()}
    (first, expected), *others = outputs.items()
    for name, got in others:
        if len(got) != len(expected) or not all(map(_same, expected, got)):
            raise OutputsDiffer(f"{name} and {first} return different results")


# --- calls ----------------------------------------------------------------------------


_GETTERS: dict[type, Callable[[Any], Callable[[Any], Any]]] = {
    jax.tree_util.GetAttrKey: lambda key: operator.attrgetter(key.name),
    jax.tree_util.SequenceKey: lambda key: operator.itemgetter(key.idx),
    jax.tree_util.DictKey: lambda key: operator.itemgetter(key.key),
}


def waiter(out: Any) -> Callable[[Any], Any]:
    """What waits for one array of a result: those of one program are ready together.

    `jax.block_until_ready` would flatten the Modules of a result in Python, which can
    take longer than the call. It is used if attributes and items lead to no array.
    """
    paths = [
        path
        for path, leaf in jax.tree_util.tree_leaves_with_path(out)
        if isinstance(leaf, jax.Array) and all(type(key) in _GETTERS for key in path)
    ]
    if not paths:
        return jax.block_until_ready

    shortest = min(paths, key=len)
    getters = [_GETTERS[type(key)](key) for key in shortest]

    def wait(out: Any) -> None:
        for get in getters:
            out = get(out)
        out.block_until_ready()

    return wait


class Sampler:
    """Times the calls of one contender of a case, a round at a time."""

    def __init__(self, case: Case, call: Call):
        self.call = call
        # The method for each mode, which makes some calls and returns their seconds.
        self._timers = {mode: getattr(self, f"_{mode}") for mode in case.modes}
        # The least length of a round, in seconds and in calls.
        self._least_seconds = _ROUND_SECONDS
        self._least_calls = math.ceil(_ROUND_CALLS / case.steps)
        if case.loop:
            self._least_seconds, self._least_calls = _LOOP_SECONDS, 1
        # A call that dispatches more by itself may block, as it does in any program:
        # that of an eager contender, for example.
        self._at_once = max(1, _IN_FLIGHT // case.steps)
        self._calls: dict[str, int] = {}  # of a round, by mode

    def warm(self) -> None:
        """Call 40 times, or for half a second, and choose the length of a round."""
        start = time.perf_counter()
        of_call = math.inf
        self._wait = waiter(self.call())
        for _ in range(_WARM_CALLS):
            of_call = min(of_call, self._blocked(1))
            if time.perf_counter() - start > _WARM_SECONDS:
                break

        for mode, timer in self._timers.items():
            # A call that fills a round alone is not made again for this.
            if of_call < self._least_seconds:
                of_call = min(timer(5) for _ in range(3)) / 5
            calls = int(self._least_seconds / of_call)
            self._calls[mode] = max(self._least_calls, calls)

    def round(self) -> dict[str, float]:
        """Microseconds a call, by mode."""
        gc.collect()
        self._blocked(min(_COLD_CALLS, self._least_calls))
        return {
            mode: self._timers[mode](n) / n * 1e6 for mode, n in self._calls.items()
        }

    def _dispatch(self, n: int) -> float:
        """Until the calls return. Waiting for the device in between is not timed."""
        call = self.call
        seconds = 0.0
        for done in range(0, n, self._at_once):
            out = None
            start = time.perf_counter()
            for _ in range(min(self._at_once, n - done)):
                out = call()
            seconds += time.perf_counter() - start
            self._wait(out)
        return seconds

    def _blocked(self, n: int) -> float:
        """Until each result is ready."""
        call, wait = self.call, self._wait
        start = time.perf_counter()
        for _ in range(n):
            wait(call())
        return time.perf_counter() - start

    def _iteration(self, n: int) -> float:
        """All iterations of a loop, until the last result is ready."""
        call, out = self.call, None
        start = time.perf_counter()
        for _ in range(n):
            out = call()
        self._wait(out)
        return time.perf_counter() - start


def _first_call(call: Call) -> dict[str, float]:
    """Milliseconds of a call that traces, lowers, compiles and runs."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    return {"total": 1e3 * (time.perf_counter() - start)}


# --- rounds ---------------------------------------------------------------------------


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Disable garbage collection, except for what `Sampler.round` asks for.

    What exists already is frozen, so that each of these collections is short.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _round_of(case: Case, calls: dict[str, Call]) -> dict[str, Callable[[], Any]]:
    """For each contender, the function that times one round."""
    if case.first:
        return {name: ft.partial(_first_call, call) for name, call in calls.items()}

    samplers = {name: Sampler(case, call) for name, call in calls.items()}
    for sampler in samplers.values():
        sampler.warm()
    return {name: sampler.round for name, sampler in samplers.items()}


# The time of a call in each round, by mode and contender.
TimesByMode = dict[str, dict[str, list[float]]]


def measure(
    case: Case,
    rounds: int,
    contenders: tuple[str, ...] = (),
    times: TimesByMode | None = None,
) -> TimesByMode:
    """Time contenders of a case in this process.

    **Arguments:**

    - `case`: the case.
    - `rounds`: the number of rounds, of which the case may allow fewer.
    - `contenders`: by default, all of the case.
    - `times`: where the times go, for who wants those of finished rounds after Ctrl-C.

    **Returns:** the times: in microseconds, and for first calls in milliseconds.

    **Raises:** `OutputsDiffer` if contenders return different results.
    """
    if times is None:
        times = {}
    calls = case.build(contenders)
    check_equal(calls)
    timed = _round_of(case, calls)

    finished: list[dict[str, dict[str, float]]] = []
    try:
        with _without_collections():
            order = list(timed)
            for _ in range(min(rounds, case.rounds or rounds)):
                finished.append({name: timed[name]() for name in order})
                # No contender is always first. But for that round, it comes after the
                # same one, as in all results that are published.
                order = order[1:] + order[:1]
    finally:
        if finished:
            for mode in case.modes:
                times[mode] = {
                    name: [x[name][mode] for x in finished] for name in timed
                }
    return times
