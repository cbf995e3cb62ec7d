"""One function as each contender would call it."""

import functools as ft
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

import eqx_fastjit

from ._case import Call, Makers


FILTER_JITS = {"eqx": eqx.filter_jit, "ours": eqx_fastjit.filter_jit}
JITS = {"jit": jax.jit, **FILTER_JITS}


def each(make: Callable[[Any], Any], of: Mapping[str, Any] = JITS) -> Makers:
    """For each of these, by name, what `make` builds of it."""
    return {name: ft.partial(make, x) for name, x in of.items()}


def is_traced(x: Any) -> bool:
    """Whether a filtered jit would trace this leaf."""
    return isinstance(x, jax.Array | np.ndarray | np.generic)


def filled(make: Callable[[], Any]) -> Any:
    """The model that `make()` would make, its arrays filled with random numbers.

    Faster than JAX's own random numbers, which are compiled for each shape, and the
    same in every process.
    """
    rng = np.random.default_rng(0)

    def fill(x: Any) -> Any:
        if not isinstance(x, jax.ShapeDtypeStruct):
            return x
        bound = 1 / np.sqrt(x.shape[-1]) if x.shape else 1.0
        return jnp.asarray(rng.uniform(-bound, bound, x.shape), x.dtype)

    return jtu.tree_map(fill, eqx.filter_eval_shape(make))


def of_function(fn: Callable[..., Any], *args: Any) -> Makers:
    """`fn(*args)` as each contender would call it, the same arguments each time."""

    def by(function: Callable[..., Any], args: Any, _: Any = None) -> Call:
        return lambda: function(*args)

    return {"eager": lambda: by(fn, args), **_by_each(fn, args, by)}


def of_step(
    step: Callable[[Any, Any], Any], x: Any, state: Any, donate: bool
) -> Makers:
    """`state, value = step(x, state)` over and over, from the state of the call before.

    With `donate`, a call consumes the arrays of the state that it is given: each
    contender has its own copy of the first.
    """
    return _of_loop(step, (x, state), (1, 2), donate)


def of_loop(
    step: Callable[..., Any], carried: tuple[Any, ...], others: tuple[Any, ...] = ()
) -> Makers:
    """`*carried, rest = step(*carried, *others)`, over and over."""
    return _of_loop(step, carried + others, (0, len(carried)))


# Where the arguments begin and end that a call takes from the result before it.
_Span = tuple[int, int]


def _of_loop(
    step: Callable[..., Any], args: tuple[Any, ...], span: _Span, donate: bool = False
) -> Makers:
    def by(function: Callable[..., Any], args: Any, span: _Span) -> Call:
        start, stop = span
        before, carried, after = args[:start], args[start:stop], args[stop:]
        if donate:
            carried = jtu.tree_map(
                lambda x: jnp.copy(x) if eqx.is_array(x) else x, carried
            )

        def call() -> Any:
            nonlocal carried
            out = function(*before, *carried, *after)
            carried = out[: stop - start]
            return out

        return call

    return _by_each(step, args, by, span, donate)


def _by_each(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    by: Callable[[Any, Any, _Span], Call],
    span: _Span = (0, 0),
    donate: bool = False,
) -> Makers:
    """What `by` makes of each contender's function, its arguments, and their span.

    With `donate`, these are all arguments but the first.
    """
    arrays, statics = eqx.partition(args, is_traced)
    leaves, treedef = jtu.tree_flatten(arrays)
    start, stop = (len(jtu.tree_leaves(arrays[:i])) for i in span)

    def without_statics(*arrays: Any) -> Any:
        return eqx.filter(fn(*eqx.combine(arrays, statics)), eqx.is_array)

    def on_leaves(*leaves: Any) -> Any:
        return jtu.tree_leaves(without_statics(*jtu.tree_unflatten(treedef, leaves)))

    def jit(function: Callable[..., Any], span: _Span) -> Any:
        return jax.jit(function, donate_argnums=tuple(range(*span)) if donate else ())

    def aot() -> Any:
        return jit(without_statics, span).lower(*arrays).compile()

    def filtered(filter_jit: Any) -> Call:
        jitted = filter_jit(fn, donate="all-except-first" if donate else "none")
        return by(jitted, args, span)

    return {
        "jit": lambda: by(jit(without_statics, span), arrays, span),
        "flat": lambda: by(jit(on_leaves, (start, stop)), leaves, (start, stop)),
        "aot": lambda: by(aot(), arrays, span),
        **each(filtered, FILTER_JITS),
    }
