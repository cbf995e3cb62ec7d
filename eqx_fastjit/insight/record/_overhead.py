"""What a call takes beside computing, under this library and under Equinox.

It is measured once the program has ended. A function that computes next to nothing is
called with what a function of the program's was given, but with scalars for the arrays.
It has a small product of matrices: on a CPU, XLA runs what has none in the thread that
calls it, and anything else in another one, for which the caller has to wait.
"""

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eqx_fastjit import _blocking
from eqx_fastjit._install import equinox_filter_jit
from eqx_fastjit._jit import filter_jit

from ._calls import Timed


# Rounds of calls, and calls in each.
_ROUNDS, _CALLS = 7, 20
# Of the matrix.
_SIZE = 16


class Overhead(NamedTuple):
    """Seconds of a call that is to compute next to nothing."""

    # Until its results are ready.
    launch: float
    # What Python takes longer for it under Equinox's own `filter_jit`, on the CPU:
    # other programs may take that away from the one or the other.
    equinox: float


@functools.lru_cache(maxsize=64)
def overhead_of(timed: Timed) -> Overhead | None:
    """The overhead of a function's calls; `None` if it cannot be measured now."""
    if _blocking.observer is not None:  # the program is still running
        return None
    given = jax.tree.map(_as_array, timed.given.template)
    matrix = jnp.ones((_SIZE, _SIZE))
    call_ours = functools.partial(filter_jit(_computes_little), given, matrix)
    call_theirs = functools.partial(equinox_filter_jit(_computes_little), given, matrix)
    try:
        rounds = [(_seconds(call_ours), _seconds(call_theirs)) for _ in range(_ROUNDS)]
    except Exception:  # of a user's class, which may take no scalars
        return None
    ours, theirs = zip(*rounds, strict=True)
    longer = min(x.cpu for x in theirs) - min(x.cpu for x in ours)
    return Overhead(statistics.median(x.wall for x in ours), max(0.0, longer))


def _as_array(x: Any) -> Any:
    return jnp.asarray(x) if isinstance(x, np.ndarray) else x


def _computes_little(given: Any, matrix: Any) -> Any:
    return given, matrix @ matrix


class _Seconds(NamedTuple):
    wall: float
    cpu: float  # of this thread


def _seconds(call: Callable[[], Any]) -> _Seconds:
    """The seconds of a call, in the mean."""
    jax.block_until_ready(call())  # compiles, in the first round
    wall, cpu = time.perf_counter(), time.thread_time()
    for _ in range(_CALLS):
        jax.block_until_ready(call())
    wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
    return _Seconds(wall / _CALLS, cpu / _CALLS)
