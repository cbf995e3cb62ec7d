"""One view of `filter_jit`'s, Equinox's, `jax.jit`'s and plain functions.

A *target* is what the user passed. It can be traced again at any time, as a
function that no cache has seen, so that the user's own is left as it was.
"""

# Of JAX's functions not all have types.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools as ft
import inspect
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.tree_util as jtu

from eqx_fastjit._compat import (
    filter_jit_options,
    hide_from_tracebacks,
    jit_options,
)
from eqx_fastjit._jit import BoundJit, filter_jit, JitWrapped
from eqx_fastjit._nodes import ARRAY_TYPES
from eqx_fastjit._partition import partition
from eqx_fastjit._progress import Progress


hide_from_tracebacks(__file__)

_PJIT = type(jax.jit(lambda: None))


# A function of flat arrays, these, their paths, and which of them are donated.
_Flat = tuple[Callable[..., Any], list[Any], list[str], list[bool]]


class Traced(NamedTuple):
    """A fresh trace of a target for one call."""

    stage: Any  # a `jax.stages.Traced`, of a function of `arrays`
    arrays: list[Any]
    # One for each of `arrays`: its path as the user would write it; whether the user's
    # function donates it.
    names: list[str]
    donated: list[bool]
    out_names: list[str]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Target:
    """A function as the user gave it."""

    # "eqx_fastjit", "equinox", "jax" or "plain"
    kind: str
    name: str
    # The function without jit.
    fun: Callable[..., Any]
    # Ours, or of the same function by us; `jax.jit`'s for the kind "jax".
    jitted: Any
    # What a bound method puts before the arguments.
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    def complete(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, with those of a bound method."""
        return (*self.args, *args), {**self.kwargs, **kwargs}

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function without jit."""
        args, kwargs = self.complete(args, kwargs)
        return self.fun(*args, **kwargs)

    @property
    def donates(self) -> bool:
        """Whether the function deletes some of its arguments."""
        if self.kind == "jax":
            options = jit_options(self.jitted) or {}
            return bool(options.get("donate_argnums") or options.get("donate_argnames"))
        options = self.jitted._function.options
        return options.donate_first or options.donate_rest

    def trace(
        self, args: Sequence[Any], kwargs: dict[str, Any], *, donate: bool = True
    ) -> Traced:
        """Trace the function for such a call, whatever was traced before.

        `donate` says whether arguments are donated as they are by the user's function.
        """
        args, kwargs = self.complete(args, kwargs)
        flatten = self._flatten_jax if self.kind == "jax" else self._flatten_filtered
        call, arrays, names, donated = flatten(args, kwargs)
        out_names: list[str] = []

        def boundary(*arrays: Any) -> Any:
            out: list[Any] = []
            for path, x in jtu.tree_flatten_with_path(call(*arrays))[0]:
                if isinstance(x, ARRAY_TYPES):
                    out_names.append(f"result{jtu.keystr(path)}")
                    out.append(x)
            return out

        boundary.__name__ = boundary.__qualname__ = self.name
        argnums = [i for i, x in enumerate(donated) if x and donate]
        # What is not used is kept, so that arguments and names stay in step.
        jitted = jax.jit(boundary, donate_argnums=argnums, keep_unused=True)
        start = time.perf_counter()
        stage = jitted.trace(*arrays)
        seconds = time.perf_counter() - start
        return Traced(stage, arrays, names, donated, out_names, seconds)

    def _flatten_filtered(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Flat:
        function = self.jitted._function
        values = self.jitted._bind(*args, **kwargs)
        arrays, structure = partition(values, abstract=True)
        indices = set(function.donated(values))
        donated = [i in indices for i in range(len(arrays))]

        def call(*arrays: Any) -> Any:
            return function.call_python(*structure.rebuild(arrays))

        return call, arrays, function.array_paths(values), donated

    def _flatten_jax(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Flat:
        options = jit_options(self.jitted) or {}
        names = _parameter_names(self.fun, args)

        def chosen(how: str) -> set[Any]:
            # By position, or by keyword: JAX does not take one for the other here.
            numbers = _indices(options.get(f"{how}_argnums"), len(args))
            return {*numbers, *(options.get(f"{how}_argnames") or ())}

        static, donated = chosen("static"), chosen("donate")
        dynamic = {
            key: value
            for key, value in [*enumerate(args), *sorted(kwargs.items())]
            if key not in static
        }
        found, treedef = jtu.tree_flatten_with_path(list(dynamic.values()))
        # The keys of the arguments that the leaves are in.
        keys = [list(dynamic)[path[0].idx] for path, _ in found]
        leaf_names = [
            f"{names[key] if isinstance(key, int) else key}{jtu.keystr(path[1:])}"
            for key, (path, _) in zip(keys, found, strict=True)
        ]

        def call(*leaves: Any) -> Any:
            unflattened = jtu.tree_unflatten(treedef, leaves)
            values = dict(zip(dynamic, unflattened, strict=True))
            full = [values.get(i, x) for i, x in enumerate(args)]
            keywords = {k: values.get(k, v) for k, v in kwargs.items()}
            return self.fun(*full, **keywords)

        return call, [x for _, x in found], leaf_names, [key in donated for key in keys]


def _indices(numbers: Any, n: int) -> list[int]:
    numbers = () if numbers is None else numbers
    return [i % n for i in ([numbers] if isinstance(numbers, int) else numbers) if n]


def _parameter_names(fun: Any, args: tuple[Any, ...]) -> list[str]:
    """A name for each positional argument."""
    names: list[str] = []
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            names += [f"{p.name}[{i}]" for i in range(len(args) - len(names))]
        elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            names.append(p.name)
    names += [f"args[{i}]" for i in range(len(names), len(args))]
    return names


def compile_traced(traced: Traced, progress: Progress) -> tuple[Any, float, float]:
    """The compiled program; the seconds of lowering it, and of compiling it."""
    clock = time.perf_counter
    progress.stage("lowering")
    with warnings.catch_warnings():
        # The user has been told when the function itself was lowered.
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        start = clock()
        lowered = traced.stage.lower()
        lower_seconds = clock() - start
    progress.stage("compiling")
    start = clock()
    compiled = lowered.compile()
    return compiled, lower_seconds, clock() - start


# The code object of the function at which a trace begins; what is further out in a
# stack is not the user's function.
BOUNDARY_FILE = __file__


def target(f: Any) -> Target:
    """The target of a callable. Raises `TypeError` for anything else."""
    if not callable(f):
        raise TypeError(f"expected a function, jitted or not; got a {type(f).__name__}")
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(f, BoundJit) or (
        isinstance(f, eqx.Partial | ft.partial) and _is_jitted(f.func)
    ):
        f, args, kwargs = f.func, tuple(f.args), dict(f.keywords)
    elif _is_jitted(method := getattr(f, "__func__", None)):
        # A method of a class, or Equinox's own kind.
        f, args = method, (getattr(f, "__self__"),)  # noqa: B009
    if isinstance(f, JitWrapped):
        kind, fun, jitted = "eqx_fastjit", f.__wrapped__, f
    elif (found := filter_jit_options(f)) is not None:
        kind, (fun, donate) = "equinox", found
        jitted = filter_jit(fun, donate=donate)  # pyright: ignore
    elif isinstance(f, _PJIT) and hasattr(f, "__wrapped__"):
        kind, fun, jitted = "jax", getattr(f, "__wrapped__"), f  # noqa: B009
    else:
        kind, fun, jitted = "plain", f, filter_jit(f)
    name = getattr(fun, "__name__", type(fun).__name__)
    return Target(kind, str(name), fun, jitted, args, kwargs)


def _is_jitted(f: Any) -> bool:
    return isinstance(f, JitWrapped | _PJIT) or filter_jit_options(f) is not None


def unwrapped(f: Any) -> Any:
    """The function that was jitted, if `f` is a jitted function; else `f`."""
    if isinstance(f, BoundJit):
        f = f.func
    if isinstance(f, JitWrapped):
        return f.__wrapped__
    found = filter_jit_options(f)
    return f if found is None else found[0]
