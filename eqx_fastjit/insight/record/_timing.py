"""Calls, timed in interleaved rounds, so that what disturbs one disturbs all."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax


# The least number of rounds of slow calls.
_LEAST_ROUNDS = 3
# A round has several calls of one kind: a call that follows one of another kind takes
# longer, by a different amount for each kind.
_ROUND_SECONDS = 1e-3


class Timing(NamedTuple):
    """A call, in seconds: medians over the rounds."""

    # Until the call returns.
    returns: float
    # Until its result is ready.
    ready: float
    # The latter in each round, in the mean over its calls.
    rounds: tuple[float, ...]


def time_calls(
    calls: dict[str, Callable[[], Any]], seconds: float
) -> dict[str, Timing]:
    """Time calls that have been compiled, for so many seconds in all."""
    n = 1 + int(_ROUND_SECONDS / min(_time_call(call)[1] for call in calls.values()))
    rounds: list[list[tuple[float, float]]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < _LEAST_ROUNDS or time.perf_counter() < end:
        rounds.append([_time_call(call, n) for call in calls.values()])

    out: dict[str, Timing] = {}
    for name, times in zip(calls, zip(*rounds, strict=True), strict=True):
        returns, ready = zip(*times, strict=True)
        out[name] = Timing(statistics.median(returns), statistics.median(ready), ready)
    return out


def _time_call(call: Callable[[], Any], n: int = 1) -> tuple[float, float]:
    """Seconds until a call returns, and until its result is ready."""
    clock, block = time.perf_counter, jax.block_until_ready
    returns = ready = 0.0
    for _ in range(n):
        start = clock()
        out = call()
        returned = clock()
        block(out)
        returns += returned - start
        ready += clock() - start
        del out  # to free it is no part of the next call
    return returns / n, ready / n
