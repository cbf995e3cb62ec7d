"""Unrolled loops in what a program compiles, for the doctor."""

# Of JAX's functions not all have types.
# pyright: reportUnknownMemberType=false

import dataclasses
from typing import Any

import jax

from eqx_fastjit import _events, _traced
from eqx_fastjit._describe import Leaf
from eqx_fastjit._events import Event, FunctionInfo

from ._equations import read_jaxpr
from ._loops import find_loops, UnrolledLoop


# Seconds that tracing and compiling took, from which on a function is looked through;
# and the share of its equations that a loop has, from which on it is told.
_SECONDS = 1.0
_SHARE = 0.5


@dataclasses.dataclass(frozen=True)
class Unrolled:
    """A loop that most of a function's equations come from."""

    function: FunctionInfo
    # To trace, lower and compile the function.
    seconds: float
    # The share of that which a `scan` saves, if each equation takes as long as another.
    # In truth it is more: the time grows faster than their number.
    saves: float
    loop: UnrolledLoop
    # What to do about it.
    hint: str


class UnrolledLoops:
    """Looks for loops in what takes long to compile; `on_event` is an observer."""

    def __init__(self) -> None:
        # The slowest compilation of each function.
        self._found: dict[Any, Unrolled] = {}

    def found(self) -> list[Unrolled]:
        """By seconds."""
        return sorted(self._found.values(), key=lambda x: -x.seconds)

    def on_event(self, event: Event) -> None:
        """A function has been compiled, and its call is about to return."""
        specialization = _events._active()  # pyright: ignore[reportPrivateUsage]
        seconds, key = event.own_seconds - event.first_run, event.function.key()
        known = self._found.get(key)
        if specialization is None or not event.traced or event.failed:
            return
        if seconds < max(_SECONDS, known.seconds if known else 0.0):
            return
        arrays = [_struct(leaf) for leaf in event.signature if leaf.kind == "array"]
        try:
            traced = _traced.kept_trace(specialization.jitted, arrays)
        except Exception:  # JAX has dropped it, or the arrays cannot be described
            return
        scope = read_jaxpr(traced.jaxpr)
        loops = [x for x in find_loops(scope) if x.equations >= _SHARE * scope.size]
        if loops:
            loop, hint = loops[0], loops[0].hint(scope.size)
            saves = seconds * (loop.equations - loop.scan_equations) / scope.size
            self._found[key] = Unrolled(event.function, seconds, saves, loop, hint)


def _struct(leaf: Leaf) -> Any:
    dtype: Any = leaf.dtype
    if dtype.startswith("key<"):
        dtype = jax.eval_shape(jax.random.key, 0).dtype  # of the default kind
    return jax.ShapeDtypeStruct(leaf.shape, dtype, weak_type=leaf.weak_type)
