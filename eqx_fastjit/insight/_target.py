"""What a user passed to `inspect` or `profile`: a function, jitted in any way or not.

It is traced as a function that no cache has seen, so that the user's own is left as it
was.
"""

import functools
import inspect
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.tree_util as jtu

from eqx_fastjit._jit import BoundJit, JitWrapped
from eqx_fastjit._private import filter_jit_options


_JAX_JIT = type(jax.jit(lambda: None))


class Target(NamedTuple):
    """A function, as the user gave it."""

    name: str
    # The function without jit.
    fun: Callable[..., Any]
    # What is donated, as `filter_jit` has it.
    donate: str
    # Traces a function under `jax.jit`, which knows its static arguments. `None` for
    # other functions.
    trace_jax: Any
    # What a bound method puts before the arguments.
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def complete(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, with those of a bound method."""
        return (*self.args, *args), {**self.kwargs, **kwargs}


def target(f: Any) -> Target:
    """The target of a callable. Raises `TypeError` for anything else."""
    if not callable(f):
        raise TypeError(f"expected a function, jitted or not; got a {type(f).__name__}")
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    is_partial = isinstance(f, eqx.Partial | functools.partial)
    if isinstance(f, BoundJit) or (is_partial and _is_jitted(f.func)):
        f, args, kwargs = f.func, tuple(f.args), dict(f.keywords)
    elif _is_jitted(method := getattr(f, "__func__", None)):
        f, args = method, (f.__self__,)
    fun, donate, trace_jax = f, "none", None
    if isinstance(f, JitWrapped):
        fun, donate = f.__wrapped__, f._function.options.donate
    elif (options := filter_jit_options(f)) is not None:
        fun, donate = options
    elif isinstance(f, _JAX_JIT):
        fun, trace_jax = f.__wrapped__, f.trace
    return Target(_name_of(fun), fun, donate, trace_jax, args, kwargs)


def _is_jitted(f: Any) -> bool:
    return isinstance(f, JitWrapped | _JAX_JIT) or filter_jit_options(f) is not None


class Traced(NamedTuple):
    """A trace of a target for one call."""

    stage: Any  # a `jax.stages.Traced` of a function of the arrays alone
    arrays: list[Any]
    # Paths of the arguments and of the results, as the user would write them.
    names: list[str]
    out_names: list[str]
    seconds: float


def trace(it: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
    """Trace a target. Raises what the function raises."""
    args, kwargs = it.complete(args, kwargs)
    if it.trace_jax is not None:
        return _trace_jax(it, args, kwargs)
    flat = flatten(it.fun, args, kwargs)
    out_names: list[str] = []

    def boundary(*arrays: Any) -> list[Any]:
        out = jtu.tree_flatten_with_path(flat.call(*arrays))[0]
        out = [(path, x) for path, x in out if eqx.is_array(x)]
        out_names.extend(f"result{jtu.keystr(path)}" for path, _ in out)
        return [x for _, x in out]

    boundary.__name__ = boundary.__qualname__ = it.name
    # What is not used is kept, so that arguments and names stay in step.
    donated = flat.donated(it.donate)
    jitted = jax.jit(boundary, donate_argnums=donated, keep_unused=True)
    start = time.perf_counter()
    stage = jitted.trace(*flat.arrays)
    seconds = time.perf_counter() - start
    return Traced(stage, flat.arrays, flat.names, out_names, seconds)


def _trace_jax(it: Target, args: Any, kwargs: Any) -> Traced:
    start = time.perf_counter()
    stage = it.trace_jax(*args, **kwargs)
    seconds = time.perf_counter() - start
    jaxpr = stage.jaxpr.jaxpr
    names = getattr(jaxpr, "debug_info", None)
    return Traced(
        stage,
        [],
        _named(getattr(names, "arg_names", None), "argument", jaxpr.invars),
        _named(getattr(names, "result_paths", None), "result", jaxpr.outvars),
        seconds,
    )


def _named(names: Any, kind: str, variables: Any) -> list[str]:
    known = list(names or ())
    if len(known) == len(variables):
        return list(map(str, known))
    return [f"{kind} {i}" for i in range(len(variables))]


class Flat(NamedTuple):
    """A call as a function of its arrays alone."""

    call: Callable[..., Any]
    arrays: list[Any]
    # Paths of the arrays, as the user would write them.
    names: list[str]
    # The name of the argument that each array is in; `None` for the function's own.
    arguments: list[str | None]

    def donated(self, how: str) -> tuple[int, ...]:
        """The numbers of the arrays that `filter_jit(donate=how)` donates."""
        first = next((x for x in self.arguments if x is not None), None)
        kept = {"all": {None}, "all-except-first": {None, first}}
        if how not in kept:
            return ()
        return tuple(i for i, x in enumerate(self.arguments) if x not in kept[how])


def flatten(fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Flat:
    """Take the arrays out of a call. Raises `TypeError` if the arguments do not fit."""
    try:
        signature = inspect.signature(fun)
    except ValueError:  # of a function written in C
        signature = inspect.signature(lambda *args, **kwargs: None)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    # Values in a list: JAX would sort a dictionary.
    names, values = list(bound.arguments), list(bound.arguments.values())
    found, treedef = jtu.tree_flatten_with_path((fun, *values))
    is_dynamic = [_is_array(x) for _, x in found]

    def call(*arrays: Any) -> Any:
        dynamic = iter(arrays)
        leaves = [
            next(dynamic) if is_array else x
            for (_, x), is_array in zip(found, is_dynamic, strict=True)
        ]
        fun, *values = jtu.tree_unflatten(treedef, leaves)
        arguments = dict(zip(names, values, strict=True))
        bound = inspect.BoundArguments(signature, arguments)
        return fun(*bound.args, **bound.kwargs)

    dynamic = [x for x, is_array in zip(found, is_dynamic, strict=True) if is_array]
    owners = [None, *names]
    arguments = [owners[path[0].idx] for path, _ in dynamic]
    paths = [
        (argument or _name_of(fun)) + jtu.keystr(path[1:])
        for argument, (path, _) in zip(arguments, dynamic, strict=True)
    ]
    return Flat(call, [x for _, x in dynamic], paths, arguments)


def _is_array(x: Any) -> bool:
    return eqx.is_array(x) or isinstance(x, jax.ShapeDtypeStruct)


def _name_of(fun: Any) -> str:
    return str(getattr(fun, "__name__", type(fun).__name__))
