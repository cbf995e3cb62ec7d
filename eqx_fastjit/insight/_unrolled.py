"""Loops of a compiled function that `jax.lax.scan` would make cheaper to compile."""

from typing import Any, NamedTuple

import jax

from eqx_fastjit import _events
from eqx_fastjit._describe import Leaf
from eqx_fastjit._events import Event
from eqx_fastjit._place import Place
from eqx_fastjit._traced import kept_trace

from ._equations import read_jaxpr
from ._loops import find_loops


# Seconds of a compilation that make it worth to look at its equations.
_LEAST = 0.2


class Unrolled(NamedTuple):
    """A loop whose iterations are alike."""

    function: str
    place: Place
    iterations: int
    equations: int
    # Of the whole function.
    total: int
    # Seconds that a `scan` would save, by the number of equations.
    saved: float


def unrolled_loops(event: Event) -> list[Unrolled]:
    """The unrolled loops of what has just been compiled, at most one."""
    specialization = _events._active()
    seconds = event.own_seconds - event.first_run
    if seconds < _LEAST or specialization is None or not event.traced:
        return []
    try:
        arrays = [_struct(leaf) for leaf in event.signature if leaf.kind == "array"]
        scope = read_jaxpr(kept_trace(specialization.jitted, arrays).jaxpr)
    except (LookupError, TypeError, ValueError):
        return []  # JAX has dropped it, or the arguments have no such description
    total = scope.size
    alike = [loop for loop in find_loops(scope) if loop.uniform]
    if not alike:
        return []
    loop = alike[0]
    saved = seconds * (loop.equations - loop.scan_equations) / total
    name = event.function.name
    return [Unrolled(name, loop.place, loop.iterations, loop.equations, total, saved)]


def _struct(leaf: Leaf) -> Any:
    dtype: Any = leaf.dtype
    if dtype.startswith("key<"):  # of the default kind
        dtype = jax.eval_shape(jax.random.key, 0).dtype  # pyright: ignore
    return jax.ShapeDtypeStruct(leaf.shape, dtype, weak_type=leaf.weak_type)
