"""Times small operations, in interleaved rounds."""

# Of JAX's functions not all have types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Self, TypeVar

import jax


# A round of one part is made so long, for the clock not to matter.
_ROUND_SECONDS = 1e-3
# Of one that waits for the device, which on a busy machine takes its time.
_LONGEST_ROUND = 1e-2
# Seconds; less is an error of what an empty loop takes.
_LEAST = 1e-9
# Warm-up calls: as many, or as long, but at least three.
_WARM_CALLS, _WARM_SECONDS, _LEAST_CALLS = 40, 1.0, 3


def nothing(*values: Any) -> None:
    """Takes no time."""


def warm_up(
    call: Callable[[], Any],
    calls: int = _WARM_CALLS,
    progress: Callable[[int, int], None] = nothing,
) -> None:
    """Make calls that do not count, each until its result is ready.

    `progress` is called with the calls that are done and their number.
    """
    clock = time.perf_counter
    jax.block_until_ready(call())  # may compile
    end = clock() + _WARM_SECONDS
    for done in range(1, calls):
        if done >= _LEAST_CALLS and clock() > end:
            break
        progress(done, calls)
        jax.block_until_ready(call())


class Blocking(contextlib.ExitStack):
    """A context manager that measures how long calls block.

    Such a call would else have the time of the device among its own parts: those of
    Equinox's functions, those with NumPy arrays and those with host callbacks.
    """

    seconds = 0.0

    def __enter__(self) -> Self:
        name = "block_until_ready"
        owners = [(c, name) for c in jax.Array.__subclasses__() if name in vars(c)]
        for owner, name in (*owners, (jax, "effects_barrier")):
            old = vars(owner)[name]
            self.callback(setattr, owner, name, old)
            setattr(owner, name, self._timed(old))
        return self

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        clock = time.perf_counter

        def timed(*args: Any) -> Any:
            start = clock()
            try:
                return function(*args)
            finally:
                self.seconds += clock() - start

        return timed


class Timed(NamedTuple):
    """Seconds a call."""

    # Without what the call blocked by itself.
    own: float
    blocking: float = 0.0
    # The interquartile range of `own` over the rounds, as a share of its median.
    spread: float = 0.0

    @property
    def whole(self) -> float:
        """Until the call returns."""
        return self.own + self.blocking


class Timer(NamedTuple):
    """Something to time."""

    run: Callable[[], Any]
    # What waits for its result, outside of the time: or else the calls after it would
    # queue up, and be timed at the pace of the device.
    wait: Callable[[Any], Any] | None = None
    # Measures what a call blocks by itself; without it, that counts as its own.
    blocking: Blocking | None = None

    def time(self, n: int) -> Timed:
        """A call, in the mean of `n` calls."""
        clock, run, wait = time.perf_counter, self.run, self.wait
        if wait is None:
            start = clock()
            for _ in range(n):
                run()
            return Timed((clock() - start) / n)
        total, inside, done = 0.0, 0.0, 0
        blocking = self.blocking or Blocking()
        end = clock() + _LONGEST_ROUND
        while done < n and (not done or clock() < end):
            before = blocking.seconds
            start = clock()
            out = run()
            total += clock() - start
            inside += blocking.seconds - before
            wait(out)
            done += 1
        return Timed((total - inside) / done, inside / done)

    def calls_a_round(self) -> int:
        """How many calls to make in a round."""
        seconds = self.time(1).whole
        if seconds < _ROUND_SECONDS:
            seconds = min(seconds, *(self.time(3).whole for _ in range(3)))
        return max(1, min(1000, int(_ROUND_SECONDS / max(seconds, 1e-9))))


_Name = TypeVar("_Name", bound=Hashable)


def measure(
    timers: dict[_Name, Timer],
    rounds: int,
    progress: Callable[[int, int], None] = nothing,
) -> dict[_Name, Timed]:
    """Medians over interleaved rounds, less what an empty timer of the kind takes.

    `progress` is called before each round, with the rounds that are done and their
    number.
    """
    empty = {False: Timer(nothing), True: Timer(nothing, nothing)}
    timed: dict[Any, Timer] = {**timers, **empty}
    counts = {name: timer.calls_a_round() for name, timer in timed.items()}
    found: dict[Any, list[Timed]] = {name: [] for name in timed}
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for done in range(rounds):
            progress(done, rounds)
            for name, timer in timed.items():
                found[name].append(timer.time(counts[name]))
    finally:
        if was_enabled:
            gc.enable()
    loops = {kind: statistics.median(t.own for t in found[kind]) for kind in empty}
    return {
        name: _median(found[name], loops[timer.wait is not None])
        for name, timer in timers.items()
    }


def _median(rounds: list[Timed], loop: float) -> Timed:
    seconds = [t.own for t in rounds]
    median = statistics.median(seconds)
    spread = 0.0
    if len(seconds) > 1 and median > 0:
        low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
        spread = (high - low) / median
    blocking = statistics.median(t.blocking for t in rounds)
    own = median - loop
    return Timed(own if own > _LEAST else 0.0, blocking, spread)
