"""One function, as each contender calls it."""

import functools as ft
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .case import Call, Makers


def our_filter_jit(fun: Any) -> Any:
    """`eqx_fastjit.filter_jit`."""
    # Imported late: `whole.py` also times processes without it.
    import eqx_fastjit

    return eqx_fastjit.filter_jit(fun)


FILTER_JITS = {"eqx": eqx.filter_jit, "ours": our_filter_jit}
ALL_JITS = {"jit": jax.jit, **FILTER_JITS}


def each(
    make: Callable[[Any], Call], jits: Mapping[str, Any] = ALL_JITS
) -> dict[str, Callable[[], Call]]:
    """For each jit, by name, what builds `make(jit)`."""
    return {name: ft.partial(make, jit) for name, jit in jits.items()}


def of_function(fun: Callable[..., Any], *args: Any) -> Makers:
    """`fun(*args)`, with the same arguments in each call."""

    def repeat(function: Callable[..., Any], args: Any, carried: int) -> Call:
        return lambda: function(*args)

    jitted = _of_each(fun, args, 0, repeat)
    return {"eager": lambda: repeat(fun, args, 0), **jitted}


def of_retraces(fun: Callable[..., Any], *args: Any) -> Makers:
    """`fun(*args, x)`, with an `x` of another shape in each call."""

    def retrace(function: Callable[..., Any], args: Any, carried: int) -> Call:
        sizes = itertools.count(1)
        return lambda: function(*args[:-1], np.zeros(next(sizes), np.float32))

    # The last stands for `x`, which differs in each call.
    return _of_each(fun, (*args, np.zeros(1, np.float32)), 0, retrace)


def of_loop(
    step: Callable[..., Any], carried: tuple[Any, ...], others: tuple[Any, ...] = ()
) -> Makers:
    """`*carried, rest = step(*carried, *others)`, over and over."""

    def advance(function: Callable[..., Any], args: Any, carried: int) -> Call:
        state, others = args[:carried], args[carried:]

        def call() -> Any:
            nonlocal state
            out = function(*state, *others)
            state = out[:carried]
            return out

        return call

    return _of_each(step, carried + others, len(carried), advance)


def _of_each(
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    carried: int,
    build: Callable[[Callable[..., Any], Any, int], Call],
) -> dict[str, Callable[[], Call]]:
    """For each contender, what builds its call: `build(function, args, carried)`.

    `build` gets `args` as its function takes them: without statics, as leaves, or
    unchanged. The first `carried` of them come from the call before.
    """
    arrays, statics = eqx.partition(args, eqx.is_array)
    leaves, treedef = jax.tree.flatten(arrays)
    carried_leaves = len(jax.tree.leaves(arrays[:carried]))

    def without_statics(*arrays: Any) -> Any:
        args = eqx.combine(arrays, statics)
        return eqx.filter(fun(*args), eqx.is_array)

    def on_leaves(*leaves: Any) -> Any:
        arrays = jax.tree.unflatten(treedef, leaves)
        return jax.tree.leaves(without_statics(*arrays))

    return {
        "jit": lambda: build(jax.jit(without_statics), arrays, carried),
        "flat": lambda: build(jax.jit(on_leaves), leaves, carried_leaves),
        **each(lambda filter_jit: build(filter_jit(fun), args, carried), FILTER_JITS),
    }


def training_step(loss: Callable[..., Any], optimiser: Any) -> Callable[..., Any]:
    """The usual training step."""

    def step(model: Any, opt_state: Any, *batch: Any) -> Any:
        value, grads = eqx.filter_value_and_grad(loss)(model, *batch)
        params = eqx.filter(model, eqx.is_inexact_array)
        updates, opt_state = optimiser.update(grads, opt_state, params)
        return eqx.apply_updates(model, updates), opt_state, value

    return step


def training(
    loss: Callable[..., Any], model: Any, optimiser: Any, *batch: Any
) -> Makers:
    """The usual training step, over and over."""
    opt_state = optimiser.init(eqx.filter(model, eqx.is_inexact_array))
    return of_loop(training_step(loss, optimiser), (model, opt_state), batch)


def filled(make: Callable[[], Any]) -> Any:
    """The model that `make()` would make, its arrays filled with random numbers.

    (Integers are 0, and flags true.)

    JAX's random numbers are compiled for each shape, which would take longer than the
    benchmark.
    """
    rng = np.random.default_rng(0)

    def fill(x: Any) -> Any:
        if not isinstance(x, jax.ShapeDtypeStruct):
            return x
        bound = 1.0
        if x.shape:
            bound = 1 / np.sqrt(x.shape[-1])
        return jnp.asarray(rng.uniform(-bound, bound, x.shape), x.dtype)

    return jax.tree.map(fill, eqx.filter_eval_shape(make))
