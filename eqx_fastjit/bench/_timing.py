"""Timing contenders against each other."""

import gc
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np

from ._case import Call, Measured


# A round is made long enough for the clock not to matter: so many seconds, and so many
# calls, unless these take longer than that.
_ROUND_SECONDS = 4e-3
_ROUND_CALLS, _LONG_CALL_SECONDS = 10, 10e-3
# A collection displaces the caches. The first calls after it take up to 2.6 times as
# long, from the fourth on all take the same.
_COLD_CALLS = 3
# Python specializes its bytecode, and the allocators and caches fill.
_WARM_CALLS = 40
_WARM_SECONDS = 0.5
# The CPU and GPU clients let no more than 32 computations wait; then calls block.
_IN_FLIGHT = 30


class Timing(NamedTuple):
    """Microseconds a call, one entry per round."""

    dispatch: list[float]
    blocked: list[float]


class OutputsDiffer(Exception):
    """Two contenders return different results."""


def output_arrays(call: Call) -> list[np.ndarray]:
    """The arrays that a call returns, in the order of its pytree's leaves."""
    out = call()
    if isinstance(out, Measured):
        out = out.output

    def on_host(x: jax.Array) -> np.ndarray:
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        return np.array(x)

    return [on_host(x) for x in jtu.tree_leaves(eqx.filter(out, eqx.is_array))]


def same_arrays(xs: list[np.ndarray], ys: list[np.ndarray]) -> bool:
    """Whether outputs are the same, up to what reordered float32 operations do."""
    return len(xs) == len(ys) and all(
        x.dtype == y.dtype
        and x.shape == y.shape
        and np.allclose(x, y, rtol=1e-4, atol=1e-5)
        for x, y in zip(xs, ys, strict=True)
    )


def check_equal(calls: dict[str, Call]) -> None:
    """Raise `OutputsDiffer` unless all contenders return the same arrays."""
    outputs = {name: output_arrays(call) for name, call in calls.items()}
    (first, expected), *others = outputs.items()
    for name, got in others:
        if not same_arrays(expected, got):
            raise OutputsDiffer(f"{name} and {first} return different results")


class Sampler:
    """Times one contender, a round at a time.

    Each call dispatches `steps` computations. One that `times_itself` returns
    `Measured`, and needs no clock here.
    """

    def __init__(
        self,
        call: Call,
        steps: int = 1,
        times_itself: bool = False,
        modes: tuple[str, ...] = ("dispatch", "blocked"),
    ):
        self._call = call
        self._times_itself = times_itself
        self._at_once = max(1, _IN_FLIGHT // steps)
        known = {"dispatch": self._dispatch, "blocked": self._blocked}
        self._modes = {name: known[name] for name in modes}
        self._counts: dict[str, int] = {}

    def _dispatch(self, n: int) -> float:
        call, seconds = self._call, 0.0
        for done in range(0, n, self._at_once):
            calls = min(self._at_once, n - done)
            out = None
            start = time.perf_counter()
            for _ in range(calls):
                out = call()
            seconds += time.perf_counter() - start
            jax.block_until_ready(out)
        return seconds

    def _blocked(self, n: int) -> float:
        call, block = self._call, jax.block_until_ready
        start = time.perf_counter()
        for _ in range(n):
            block(call())
        return time.perf_counter() - start

    def _count(self, mode: Callable[[int], float]) -> int:
        """How many calls make a round."""
        seconds = min(mode(1) for _ in range(3))
        if seconds > _LONG_CALL_SECONDS:
            return 1
        seconds = min(mode(5) for _ in range(3)) / 5
        return max(_ROUND_CALLS, min(2000, int(_ROUND_SECONDS / seconds)))

    def warm(self) -> None:
        """Call until nothing is compiled any more, and choose the length of a round."""
        if self._times_itself:
            return
        start = time.perf_counter()
        for _ in range(_WARM_CALLS):
            jax.block_until_ready(self._call())
            if time.perf_counter() - start > _WARM_SECONDS:
                break
        self._counts = {name: self._count(mode) for name, mode in self._modes.items()}

    def round(self) -> dict[str, float]:
        """One round: a time for each mode, microseconds a call.

        For a call that times itself, what it says.
        """
        if self._times_itself:
            return dict(self._call().times)
        gc.collect()
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            if max(self._counts.values()) > 1:
                self._blocked(_COLD_CALLS)
            return {
                name: mode(self._counts[name]) / self._counts[name] * 1e6
                for name, mode in self._modes.items()
            }
        finally:
            if was_enabled:
                gc.enable()


def measure(calls: dict[str, Call], rounds: int) -> Iterator[None]:
    """Time contenders in this process, in interleaved rounds with the same noise.

    **Arguments:**

    - `calls`: the contenders, by name. All must return the same results.
    - `rounds`: the number of rounds.

    **Returns:**

    A generator that yields after each round, and finally returns a `Timing` for each
    contender. Raises `OutputsDiffer`.
    """
    check_equal(calls)
    samplers = {name: Sampler(call) for name, call in calls.items()}
    for sampler in samplers.values():
        sampler.warm()
    timings = {name: Timing([], []) for name in calls}
    for _ in range(rounds):
        for name, sampler in samplers.items():
            times = sampler.round()
            timings[name].dispatch.append(times["dispatch"])
            timings[name].blocked.append(times["blocked"])
        yield
    return timings
