"""Timing contenders against each other in one process."""

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np


# A round is made long enough for the clock and the first, cold call not to matter.
_ROUND_SECONDS = 4e-3
_WARM_CALLS = 40  # more than our own code generation waits for


class Timing(NamedTuple):
    """Microseconds a call, one entry per round."""

    dispatch: list[float]
    blocked: list[float]


class OutputsDiffer(Exception):
    """Two contenders do not compute the same."""


def check_equal(calls: dict[str, Callable[[], Any]]) -> None:
    results = {}
    for name, call in calls.items():
        leaves = jtu.tree_leaves(eqx.filter(call(), eqx.is_array))
        results[name] = [np.asarray(x) for x in leaves]
    (first, expected), *others = results.items()
    for name, got in others:
        if len(got) != len(expected) or not all(
            x.dtype == y.dtype and np.allclose(x, y, rtol=1e-4, atol=1e-5)
            for x, y in zip(got, expected, strict=True)
        ):
            raise OutputsDiffer(f"{name} computes something else than {first}")


def _dispatch(call: Callable[[], Any], n: int) -> tuple[float, Any]:
    out = None
    start = time.perf_counter()
    for _ in range(n):
        out = call()
    seconds = time.perf_counter() - start
    jax.block_until_ready(out)
    return seconds, out


def _blocked(call: Callable[[], Any], n: int) -> tuple[float, Any]:
    block = jax.block_until_ready
    out = None
    start = time.perf_counter()
    for _ in range(n):
        out = block(call())
    return time.perf_counter() - start, out


def measure(calls: dict[str, Callable[[], Any]], rounds: int) -> Iterator[None]:
    """Time contenders in turn, round by round, so that all see the same noise.

    **Arguments:**

    - `calls`: the contenders, by name. All must compute the same.
    - `rounds`: how many rounds each.

    **Returns:**

    A generator that yields after each round, and returns a `Timing` for each contender
    when it is done. Raises `OutputsDiffer`.
    """
    check_equal(calls)
    modes = (_dispatch, _blocked)
    counts = {}
    for name, call in calls.items():
        _blocked(call, _WARM_CALLS)
        for mode in modes:
            seconds = min(mode(call, 5)[0] for _ in range(3)) / 5
            counts[name, mode] = max(3, min(2000, int(_ROUND_SECONDS / seconds)))
    timings = {name: Timing([], []) for name in calls}
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, call in calls.items():
                for mode, into in zip(modes, timings[name], strict=True):
                    n = counts[name, mode]
                    into.append(mode(call, n)[0] / n * 1e6)
            gc.collect()
            yield
    finally:
        if was_enabled:
            gc.enable()
    return timings
