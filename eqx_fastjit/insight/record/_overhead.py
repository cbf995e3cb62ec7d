"""What a call takes beside computing, under this library and under Equinox.

It is measured once the program has ended. A function that computes next to nothing is
called with what a function of the program's was given, but with scalars for the arrays.
It has a small product of matrices: on a CPU, XLA runs what has none in the thread that
calls it, and anything else in another one, for which the caller has to wait.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eqx_fastjit import _blocking
from eqx_fastjit._install import equinox_filter_jit
from eqx_fastjit._jit import filter_jit

from ._calls import Timed
from ._timing import time_calls


# Seconds that measuring takes, for each function.
_SECONDS = 0.02
# The operands of the product.
_MATRIX = np.ones((16, 16), np.float32)


class Overhead(NamedTuple):
    """Seconds of a call that is to compute next to nothing."""

    # Until its results are ready.
    launch: float
    # How much longer it takes under Equinox's own `filter_jit`; 0 if it is not of that.
    equinox: float


_measured = weakref.WeakKeyDictionary[Timed, Overhead | None]()


def overhead_of(timed: Timed) -> Overhead | None:
    """The overhead of a function's calls; `None` if it cannot be measured now."""
    if _blocking.observer is not None:  # the program is still running
        return None
    if timed not in _measured:
        _measured[timed] = _measure(timed)
    return _measured[timed]


def _measure(timed: Timed) -> Overhead | None:
    calls: dict[str, Callable[[], Any]] = {}
    try:
        given = jax.tree.map(_as_array, timed.given.template)
        matrix = jax.device_put(_MATRIX)
        jits: dict[str, Any] = {"ours": filter_jit}
        if timed.is_of_equinox:
            jits["theirs"] = equinox_filter_jit
        for name, jit in jits.items():
            calls[name] = functools.partial(jit(_computes_little), given, matrix)
            calls[name]()  # compiles
        timings = time_calls(calls, _SECONDS)
    except Exception:  # of a user's class, which may take no scalars
        return None

    ours = timings["ours"]
    theirs = timings.get("theirs", ours)
    # The shortest rounds: other programs may disturb the one or the other.
    longer = min(theirs.rounds) - min(ours.rounds)
    return Overhead(ours.ready, max(0.0, longer))


def _as_array(x: Any) -> Any:
    return jnp.asarray(x) if isinstance(x, np.ndarray) else x


def _computes_little(given: Any, matrix: Any) -> Any:
    return given, matrix @ matrix
