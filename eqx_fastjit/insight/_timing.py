"""Times calls in interleaved rounds, so that what disturbs one disturbs all."""

# Of JAX's functions not all have types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax


# A round has several calls of one kind: a call that follows one of another kind takes
# longer, by a different amount for each kind.
_ROUND_SECONDS = 1e-3
_MOST_CALLS = 200
LEAST_ROUNDS, _MOST_ROUNDS = 3, 100


@dataclasses.dataclass(frozen=True)
class Timing:
    """A call, in seconds: medians over the rounds."""

    # Until the call returns.
    returns: float
    # Until its result is ready.
    ready: float
    # The latter in each round, in the mean over its calls.
    rounds: tuple[float, ...]

    def saves_over(self, other: "Timing") -> tuple[float, float]:
        """By how much a call is shorter than another, and how exact that is.

        **Returns:** the median over rounds, and about its 95% confidence interval:
        interquartile range over the square root of the number of rounds.
        """
        saved = [b - a for a, b in zip(self.rounds, other.rounds, strict=True)]
        low, median, high = statistics.quantiles(saved, n=4, method="inclusive")
        return median, (high - low) / len(saved) ** 0.5


def time_calls(
    calls: dict[str, Callable[[], Any]], seconds: float
) -> dict[str, Timing]:
    """Time calls that have been compiled.

    **Arguments:**

    - `calls`: by name. Each is made until its result is ready before the next begins.
    - `seconds`: how long to go on, but for the least number of rounds.
    """
    counts: dict[str, int] = {}
    for name, call in calls.items():
        n = int(_ROUND_SECONDS / max(time_call(call)[1], 1e-9))
        counts[name] = max(1, min(_MOST_CALLS, n))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    for done in range(_MOST_ROUNDS):
        if done >= LEAST_ROUNDS and time.perf_counter() > end:
            break
        for name, call in calls.items():
            found[name].append(time_call(call, counts[name]))
    out: dict[str, Timing] = {}
    for name, rounds in found.items():
        returns, ready = zip(*rounds, strict=True)
        out[name] = Timing(statistics.median(returns), statistics.median(ready), ready)
    return out


def time_call(call: Callable[[], Any], n: int = 1) -> tuple[float, float]:
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
    return returns / n, ready / n
