"""Timing small things, in turn with one another."""

# Of JAX's functions not all have types.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax


# A round of one part is made so long, for the clock not to matter.
_ROUND_SECONDS = 1e-3
# Of one that waits for the device, which on a busy machine takes its time.
_LONGEST_ROUND = 1e-2


def nothing(*values: Any) -> None:
    """Takes no time."""


class Blocking:
    """Measures how long a call blocks by itself, while this is entered.

    Such a call would else have the time of the device among its own parts: those of
    Equinox's functions, those with NumPy arrays and those with host callbacks.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        # Seconds a call, of each round that was timed.
        self.calls: list[float] = []
        self._undo: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> "Blocking":
        name = "block_until_ready"
        owners = [(c, name) for c in jax.Array.__subclasses__() if name in vars(c)]
        for owner, name in (*owners, (jax, "effects_barrier")):
            old = vars(owner)[name]
            self._undo.append((owner, name, old))
            setattr(owner, name, self._timed(old))
        return self

    def __exit__(self, *_: Any) -> None:
        for owner, name, old in self._undo:
            setattr(owner, name, old)

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        clock = time.perf_counter

        def timed(*args: Any) -> Any:
            start = clock()
            try:
                return function(*args)
            finally:
                self.seconds += clock() - start

        return timed


class Timer(NamedTuple):
    """Something to time."""

    run: Callable[[], Any]
    # What waits for its result, outside of the time: or else the calls after it would
    # queue up, and be timed at the pace of the device.
    wait: Callable[[Any], Any] | None = None
    # What it blocks by itself does not count.
    blocking: Blocking | None = None

    def seconds(self, n: int) -> float:
        """Seconds a call, over `n` calls."""
        clock, run, wait = time.perf_counter, self.run, self.wait
        if wait is None:
            start = clock()
            for _ in range(n):
                run()
            return (clock() - start) / n
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
        blocking.calls.append(inside / done)
        return (total - inside) / done


def measure(
    timers: dict[str, Timer],
    rounds: int,
    progress: Callable[[int, int], None] = nothing,
) -> dict[str, float]:
    """Median seconds of each, less what an empty one of its kind takes.

    `progress` is called before each round, with the rounds that are done and their
    number.
    """
    empty = {False: Timer(nothing), True: Timer(nothing, nothing)}
    timed: dict[Any, Timer] = {**timers, **empty}
    counts = {}
    for name, timer in timed.items():
        seconds = min(timer.seconds(3) for _ in range(3))
        counts[name] = max(1, min(1000, int(_ROUND_SECONDS / seconds)))
    found: dict[Any, list[float]] = {name: [] for name in timed}
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for done in range(rounds):
            progress(done, rounds)
            for name, timer in timed.items():
                found[name].append(timer.seconds(counts[name]))
    finally:
        if was_enabled:
            gc.enable()
    medians = {name: statistics.median(times) for name, times in found.items()}
    return {
        name: max(medians[name] - medians[timer.wait is not None], 0.0)
        for name, timer in timers.items()
    }
