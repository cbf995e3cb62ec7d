"""One function as each contender would call it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

import eqx_fastjit

from ._case import Call, Makers


FILTER_JITS = {"eqx": eqx.filter_jit, "ours": eqx_fastjit.filter_jit}
JITS = {"jit": jax.jit, **FILTER_JITS}


class Exportable(NamedTuple):
    """What the call of `ours` is made of, for `benchmarks/startup.py` to save.

    `advance(args, out)` gives the arguments of the next call.
    """

    function: Any
    arguments: tuple[Any, ...]
    advance: Callable[[tuple[Any, ...], Any], tuple[Any, ...]]


def same_arguments(args: tuple[Any, ...], out: Any) -> tuple[Any, ...]:
    """`advance` where all calls are alike."""
    return args


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
    arrays, statics = eqx.partition(args, is_traced)
    leaves, treedef = jtu.tree_flatten(arrays)

    def without_statics(*arrays: Any) -> Any:
        out = fn(*eqx.combine(arrays, statics))
        return eqx.filter(out, eqx.is_array)

    def on_leaves(*leaves: Any) -> Any:
        return jtu.tree_leaves(without_statics(*jtu.tree_unflatten(treedef, leaves)))

    def by(function: Callable[..., Any], args: Any) -> Call:
        return lambda: function(*args)

    return {
        "eager": lambda: by(fn, args),
        "jit": lambda: by(jax.jit(without_statics), arrays),
        "flat": lambda: by(jax.jit(on_leaves), leaves),
        "aot": lambda: by(jax.jit(without_statics).lower(*arrays).compile(), arrays),
        "eqx": lambda: by(eqx.filter_jit(fn), args),
        "ours": lambda: by(eqx_fastjit.filter_jit(fn), args),
        "exportable": lambda: Exportable(
            eqx_fastjit.filter_jit(fn), args, same_arguments
        ),
    }


def of_step(
    step: Callable[[Any, Any], Any], x: Any, state: Any, donate: bool
) -> Makers:
    """`state, value = step(x, state)` over and over, from the state of the call before.

    Each contender has its own copy of the state to begin with; with `donate`, a call
    consumes the arrays of the state that it is given.
    """
    mode = "all-except-first" if donate else "none"
    arrays, statics = eqx.partition(state, eqx.is_array)
    leaves, treedef = jtu.tree_flatten(arrays)

    def without_statics(x: Any, arrays: Any) -> Any:
        state, value = step(x, eqx.combine(arrays, statics))
        return eqx.filter(state, eqx.is_array), value

    def on_leaves(x: Any, *leaves: Any) -> Any:
        state, value = without_statics(x, jtu.tree_unflatten(treedef, leaves))
        return jtu.tree_leaves(state), value

    def jit() -> Any:
        return jax.jit(without_statics, donate_argnums=1 if donate else ())

    def by(function: Callable[..., Any], state: Any) -> Call:
        state = jtu.tree_map(lambda x: jnp.copy(x) if eqx.is_array(x) else x, state)

        def call() -> Any:
            nonlocal state
            state, value = function(x, state)
            return state, value

        return call

    def flat() -> Call:
        donated = tuple(range(1, len(leaves) + 1)) if donate else ()
        function = jax.jit(on_leaves, donate_argnums=donated)
        return by(lambda x, leaves: function(x, *leaves), leaves)

    def filtered(filter_jit: Any) -> Call:
        return by(filter_jit(step, donate=mode), state)

    return {
        "jit": lambda: by(jit(), arrays),
        "flat": flat,
        "aot": lambda: by(jit().lower(x, arrays).compile(), arrays),
        "eqx": lambda: filtered(eqx.filter_jit),
        "ours": lambda: filtered(eqx_fastjit.filter_jit),
        "exportable": lambda: Exportable(
            eqx_fastjit.filter_jit(step, donate=mode),
            (x, state),
            lambda args, out: (x, out[0]),
        ),
    }


def of_loop(
    step: Callable[..., Any], carried: tuple[Any, ...], others: tuple[Any, ...] = ()
) -> Makers:
    """`*carried, rest = step(*carried, *others)`, over and over.

    **Arguments:**

    - `step`: returns a tuple that begins with what the next call is given.
    - `carried`: what the first call is given.
    - `others`: arguments after these, the same each time.
    """
    arrays, statics = eqx.partition(carried + others, is_traced)
    leaves, treedef = jtu.tree_flatten(arrays)
    count, width = len(carried), len(jtu.tree_leaves(arrays[: len(carried)]))

    def without_statics(*arrays: Any) -> Any:
        out = step(*eqx.combine(arrays, statics))
        return eqx.filter(out, eqx.is_array)

    def on_leaves(*leaves: Any) -> Any:
        out = without_statics(*jtu.tree_unflatten(treedef, leaves))
        return jtu.tree_leaves(out[:count]), jtu.tree_leaves(out[count:])

    def by(function: Callable[..., Any], args: Any) -> Call:
        carried, others = args[:count], args[count:]

        def call() -> Any:
            nonlocal carried
            out = function(*carried, *others)
            carried = out[:count]
            return out

        return call

    def flat() -> Call:
        function, carried, others = jax.jit(on_leaves), leaves[:width], leaves[width:]

        def call() -> Any:
            nonlocal carried
            out = function(*carried, *others)
            carried = out[0]
            return out

        return call

    return {
        "jit": lambda: by(jax.jit(without_statics), arrays),
        "flat": flat,
        "eqx": lambda: by(eqx.filter_jit(step), carried + others),
        "ours": lambda: by(eqx_fastjit.filter_jit(step), carried + others),
        "exportable": lambda: Exportable(
            eqx_fastjit.filter_jit(step),
            carried + others,
            lambda args, out: (*out[:count], *args[count:]),
        ),
    }
