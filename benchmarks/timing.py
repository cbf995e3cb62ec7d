"""Timing contenders against each other, in interleaved rounds in one process.

In each round all contenders take turns, so they see the same noise, and ratios are
taken within rounds. A round calls at least ten compiled functions of each contender.
Three calls before them are not timed: a garbage collection displaces the CPU's caches,
and the first calls after it take up to 2.6 times as long.
"""

import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from .case import Call, Case


# A round is long enough for the resolution of the clock not to matter.
_ROUND_SECONDS, _ROUND_CALLS = 4e-3, 10
_COLD_CALLS = 3
# Python specializes its bytecode, and allocators and caches fill.
_WARM_CALLS, _WARM_SECONDS = 40, 0.5
# JAX's CPU and GPU clients make a call block if more than 32 computations are waiting.
_IN_FLIGHT = 30

CALL_MODES = ("dispatch", "blocked")
STAGES = ("trace", "lower", "compile", "run", "total")


class OutputsDiffer(Exception):
    """Two contenders return different results."""


class Interval(NamedTuple):
    """A median, with the ends of its confidence interval."""

    low: float
    median: float
    high: float


def interval(values: list[float], confidence: float = 0.95) -> Interval:
    """The median of at least one value, with its confidence interval.

    The interval is between two order statistics, by the binomial distribution, which
    assumes nothing about the distribution of the values. Too few values (fewer than
    six, for 95%) have the interval from the least to the greatest.
    """
    ordered, n = sorted(values), len(values)
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    below, outside = 0.0, 0
    for k in range((n + 1) // 2):
        below += math.comb(n, k) / 2**n
        if 2 * below > 1 - confidence:
            break
        outside = k
    return Interval(ordered[outside], middle, ordered[n - 1 - outside])


def ratios(times: dict[str, list[float]], rival: str) -> list[float]:
    """Ours over a rival, in each round; empty if one of them was not timed.

    It is empty as well if the rival took no time, as in a stage that it did not need.
    """
    ours, theirs = times.get("ours", []), times.get(rival, [])
    if not ours or not theirs or 0 in theirs:
        return []
    return [a / b for a, b in zip(ours, theirs, strict=True)]


# --- equal results --------------------------------------------------------------------


def _arrays(call: Call) -> list[np.ndarray]:
    def on_host(x: jax.Array) -> np.ndarray:
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        return np.asarray(x)

    return [on_host(x) for x in jax.tree.leaves(eqx.filter(call(), eqx.is_array))]


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


class Sampler:
    """Times the calls of one contender, a round at a time.

    **Arguments:**

    - `call`: the call.
    - `steps`: how many compiled functions it dispatches.
    """

    def __init__(self, call: Call, steps: int = 1):
        self.call = call
        self._fewest = math.ceil(_ROUND_CALLS / steps)
        self._at_once = max(1, _IN_FLIGHT // steps)
        self._counts: dict[str, int] = {}

    def warm(self) -> None:
        """Call until nothing is compiled any more, and choose the length of a round."""
        least, start = math.inf, time.perf_counter()
        for _ in range(_WARM_CALLS):
            least = min(least, self._blocked(1))
            if time.perf_counter() - start > _WARM_SECONDS:
                break
        for mode in CALL_MODES:
            if least < _ROUND_SECONDS:
                least = min(self._seconds(mode, 5) for _ in range(3)) / 5
            self._counts[mode] = max(self._fewest, int(_ROUND_SECONDS / least))

    def round(self) -> dict[str, float]:
        """Microseconds a call, by mode."""
        gc.collect()
        self._blocked(min(_COLD_CALLS, self._fewest))
        return {
            mode: self._seconds(mode, n) / n * 1e6 for mode, n in self._counts.items()
        }

    def _seconds(self, mode: str, n: int) -> float:
        return self._dispatch(n) if mode == "dispatch" else self._blocked(n)

    def _dispatch(self, n: int) -> float:
        """Until the calls return. Waiting for the device in between is not timed."""
        call, seconds = self.call, 0.0
        for done in range(0, n, self._at_once):
            out = None
            start = time.perf_counter()
            for _ in range(min(self._at_once, n - done)):
                out = call()
            seconds += time.perf_counter() - start
            jax.block_until_ready(out)
        return seconds

    def _blocked(self, n: int) -> float:
        """Until each result is ready."""
        call, block = self.call, jax.block_until_ready
        start = time.perf_counter()
        for _ in range(n):
            block(call())
        return time.perf_counter() - start


# --- first calls ----------------------------------------------------------------------


_EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
# What has been traced and compiled: stage, start, end.
_spans: list[tuple[str, float, float]] = []


def _listen(event: str, duration_secs: float, **kwargs: Any) -> None:
    if event in _EVENTS:
        now = time.perf_counter()
        _spans.append((_EVENTS[event], now - duration_secs, now))


jax.monitoring.register_event_duration_secs_listener(_listen)


def _covered(spans: list[tuple[float, float]]) -> float:
    """How long at least one span was open. A trace inside of a trace counts once."""
    total, until = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def stages(call: Call) -> dict[str, float]:
    """Milliseconds of each stage of a call that compiles.

    **Returns:** `trace`, `lower` and `compile`, as JAX reports them; `total`; and
    `run`, which is the rest: the first run, and the overhead of the wrapper.
    """
    _spans.clear()
    start = time.perf_counter()
    jax.block_until_ready(call())
    total = time.perf_counter() - start
    seconds = {
        stage: _covered([(a, b) for name, a, b in _spans if name == stage])
        for stage in _EVENTS.values()
    }
    seconds |= {"run": total - sum(seconds.values()), "total": total}
    return {stage: 1e3 * seconds[stage] for stage in STAGES}


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
        return {name: lambda call=call: stages(call) for name, call in calls.items()}
    samplers = {name: Sampler(call, case.steps) for name, call in calls.items()}
    for sampler in samplers.values():
        sampler.warm()
    return {name: sampler.round for name, sampler in samplers.items()}


def measure(
    case: Case, rounds: int, contenders: tuple[str, ...] = ()
) -> Iterator[dict[str, dict[str, float]]]:
    """Time contenders of a case in this process.

    **Arguments:**

    - `case`: the case.
    - `rounds`: the number of rounds, of which the case may allow fewer.
    - `contenders`: by default, all of the case.

    **Returns:** an iterator with the times of each round, by mode and contender: in
    microseconds for `CALL_MODES`, in milliseconds for `STAGES`.

    **Raises:** `OutputsDiffer` if contenders return different results.
    """
    calls = case.build(contenders)
    check_equal(calls)
    timed = _round_of(case, calls)
    with _without_collections():
        order = list(timed)
        for _ in range(min(rounds, case.rounds or rounds)):
            found = {name: timed[name]() for name in order}
            modes = STAGES if case.first else CALL_MODES
            yield {mode: {n: found[n][mode] for n in timed} for mode in modes}
            # No contender is always first, or always after the same one.
            order = order[1:] + order[:1]
