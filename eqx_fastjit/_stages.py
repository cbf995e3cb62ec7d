"""Ahead of time: a call traced, then lowered, then compiled.

Each stage wraps JAX's own (`jax.stages`) and lends its attributes. What is added is the
user's calling convention, and a check that a compiled call is the one compiled for.
"""

# JAX does not mark all that it shows as such.
# pyright: reportPrivateImportUsage=false

import functools
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import jax
import jax.tree_util as jtu
from jax.core import Tracer

from . import _record
from ._compat import hide_from_tracebacks
from ._dispatch import has_host_callbacks, JittedFunction, reads_numpy, wait
from ._structure import DYNAMIC, take_apart, treedef_token


hide_from_tracebacks(__file__)

# Those of the function, so that a compiled call is checked as a call of it is.
_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Call:
    """A call that is being compiled ahead of time.

    `bind` turns the user's arguments into one value per parameter.
    """

    def __init__(
        self,
        function: JittedFunction,
        bind: Callable[..., tuple[Any, ...]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ):
        self.function = function
        self.bind = bind
        values = bind(*args, **kwargs)
        program, self.structure, arrays = function.find(values, abstract=True)
        self.tokens = take_apart(values, abstract=True)[2]
        self.treedef = treedef_token(self.structure.treedef)
        self.types = [_array_type(x) for x in arrays]
        self.names = function.leaf_names(values)
        with (
            function.quiet_donation(),
            self.recorded(values) as run,
            program.called_with(self.structure),
        ):
            self.record = run.the_trace()
            self.traced = program.jitted.trace(*arrays)
        self.waits = has_host_callbacks(self.traced.jaxpr)

    def recorded(self, values: tuple[Any, ...] | None = None) -> Any:
        """The context of a stage, for the record of traces."""
        function = self.function
        if values is not None:
            arguments = functools.partial(function.named, values)
            return _record.ahead_of_time(function.history, arguments)
        return _record.ahead_of_time(function.history, None, self.record)

    def take_apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The arrays of a call, which must be like the one compiled for."""
        values = self.bind(*args, **kwargs)
        arrays, structure, tokens = take_apart(values)
        if (
            len(tokens) != len(self.tokens)
            or treedef_token(structure.treedef) != self.treedef
        ):
            raise TypeError(self._structure_message(values, structure.treedef))
        number = 0
        for i, (name, ours, theirs) in enumerate(
            zip(self.names, self.tokens, tokens, strict=True)
        ):
            if (ours is DYNAMIC) != (theirs is DYNAMIC):
                then, now = (
                    ("an array", "static")
                    if ours is DYNAMIC
                    else (f"the static {self.structure.leaves[i]!r}", "an array")
                )
                raise TypeError(
                    f"{self._begin()} `{name}` was {then} and is now {now}."
                )
            if ours is DYNAMIC:
                then, now = self.types[number], _array_type(arrays[number])
                if then != now:
                    raise TypeError(
                        f"{self._begin()} `{name}` was {_show(then)} and is now "
                        f"{_show(now)}."
                    )
                number += 1
            elif ours != theirs:
                then, now = self.structure.leaves[i], structure.leaves[i]
                raise TypeError(
                    f"{self._begin()} the static `{name}` was {then!r} and is now "
                    f"{now!r}."
                )
        return arrays

    def _begin(self) -> str:
        return (
            f"This compiled {self.function.name} cannot be called with other arguments "
            "than it was lowered for:"
        )

    def _structure_message(self, values: tuple[Any, ...], treedef: Any) -> str:
        names = self.function.leaf_names(values)
        for then, now in zip(self.names, names, strict=False):
            if then != now:
                return f"{self._begin()} expected `{then}`, got `{now}`."
        if len(names) > len(self.names):
            return f"{self._begin()} `{names[len(self.names)]}` was not there."
        if len(names) < len(self.names):
            return f"{self._begin()} `{self.names[len(names)]}` is missing."
        return (
            f"{self._begin()} the pytree structure was\n"
            f"{self.structure.treedef}\nand is now\n{treedef}."
        )


def _array_type(x: Any) -> tuple[tuple[int, ...], Any]:
    dtype = x.dtype
    if not jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return tuple(x.shape), dtype


def _show(array_type: tuple[tuple[int, ...], Any]) -> str:
    shape, dtype = array_type
    return f"{dtype}[{','.join(map(str, shape))}]"


class _Stage:
    """Common to all stages: whatever we do not define is JAX's."""

    # `Any`: else the types of the public face would go on into every private file.
    def __init__(self, call: Any, stage: Any):
        self._call: _Call = call
        self._stage = stage

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_stage":
            raise AttributeError(name)
        return getattr(self._stage, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._call.function.qualname}>"

    @property
    def out_info(self) -> Any:
        """The result, with a `jax.ShapeDtypeStruct` for each array."""
        tree, node = self._stage.out_info
        return node.info.rebuild(jtu.tree_leaves(tree))


class Compiled(_Stage, Generic[_P, _T]):
    """A compiled function. Call it with arguments like those it was lowered for."""

    @property
    def compiled(self) -> jax.stages.Compiled:
        """JAX's own, of a function of the arrays alone."""
        return self._stage

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run the compiled function.

        **Arguments:** as it was lowered for: the same structure, statics, shapes and
        dtypes.

        **Returns:** the result. Raises `TypeError` and names the leaf for any other
        call.
        """
        __tracebackhide__ = True
        call = self._call
        arrays = call.take_apart(args, kwargs)
        error: BaseException | None
        try:
            tree, node = self._stage(*arrays)
            out = jtu.tree_leaves(tree)
            concrete = not any(isinstance(x, Tracer) for x in out)
            if concrete and (call.waits or reads_numpy(arrays)):
                wait(out)
        except Exception as e:
            error = call.function.translate(e)
            if error is None:
                raise
            raise error from None
        return node.info.rebuild(out)


class Lowered(_Stage, Generic[_P, _T]):
    """A function lowered for certain arguments."""

    @property
    def lowered(self) -> jax.stages.Lowered:
        """JAX's own, of a function of the arrays alone."""
        return self._stage

    def compile(
        self, compiler_options: dict[str, Any] | None = None
    ) -> Compiled[_P, _T]:
        """Compile.

        **Arguments:**

        - `compiler_options`: for XLA, by name.

        **Returns:** a `Compiled`.
        """
        with self._call.function.quiet_donation(), self._call.recorded():
            stage = self._stage.compile(compiler_options=compiler_options)
        return Compiled(self._call, stage)


class Traced(_Stage, Generic[_P, _T]):
    """A function traced for certain arguments. The trace is `jaxpr`."""

    def lower(self, **kwargs: Any) -> Lowered[_P, _T]:
        """Lower to StableHLO.

        **Arguments:** those of `jax.stages.Traced.lower`.

        **Returns:** a `Lowered`.
        """
        with self._call.function.quiet_donation(), self._call.recorded():
            return Lowered(self._call, self._stage.lower(**kwargs))


def trace(
    function: JittedFunction,
    bind: Callable[..., tuple[Any, ...]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Traced[..., Any]:
    """Trace a function for a call with these arguments."""
    call = _Call(function, bind, args, kwargs)
    return Traced(call, call.traced)
