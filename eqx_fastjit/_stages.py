"""Ahead-of-time compilation: trace, then lower, then compile a call.

Each stage wraps the one in `jax.stages`, and has its attributes. It adds the user's
calling convention, and checks that calls match the one that was lowered.
"""

# JAX does not mark all that it shows as such.
# pyright: reportPrivateImportUsage=false

import contextlib
import itertools
from collections.abc import Callable, Generator
from typing import Any, Generic, ParamSpec, TypeVar

import jax

from . import _events
from ._blocking import block, copied, has_host_callbacks, must_block
from ._describe import array_type, show_array
from ._engine import engine_module
from ._function import Function
from ._plan import DYNAMIC, partition
from ._private import EXPORT_OPTION, hide_from_tracebacks
from ._reference import split_output, static_key


hide_from_tracebacks(__file__)

# Those of the function, so that a compiled call is checked as a call of it is.
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Expected:
    """What a call must be like: the one that something was compiled for.

    `what` begins the message of the `TypeError` for another.
    """

    def __init__(
        self,
        function: Function,
        values: tuple[Any, ...],
        specialization: Any,
        what: str,
    ):
        self.function = function
        self.specialization = specialization
        arrays, _ = partition(values)
        self.structure = specialization.flat.structure
        self.types = [array_type(x) for x in arrays]
        self.names = [path for path, _ in function.leaves(values)]
        self.what = what

    def arrays_of(self, values: tuple[Any, ...]) -> list[Any]:
        """The arrays of a call, which must match."""
        arrays = self.specialization.arrays_of(values)
        if arrays is None:
            raise TypeError(f"{self.what} {self._difference(values)}.")
        for i, (then, array) in enumerate(zip(self.types, arrays, strict=True)):
            if then == (array.shape, array.dtype):
                continue  # nearly all, and quicker than what follows
            if then != (now := array_type(array)):
                name = self.function.array_paths(values)[i]
                raise TypeError(
                    f"{self.what} `{name}` was {show_array(then[0], str(then[1]))} and "
                    f"is now {show_array(now[0], str(now[1]))}."
                )
        return arrays

    def _difference(self, values: tuple[Any, ...]) -> str:
        """What is other than it was in a call with another signature."""
        _, structure = partition(values)
        names = [path for path, _ in self.function.leaves(values)]
        for then, now in itertools.zip_longest(self.names, names):
            if then is None:
                return f"`{now}` is new"
            if now is None:
                return f"`{then}` is missing"
            if then != now:
                return f"expected `{then}`, got `{now}`"
        leaves = zip(names, self.structure.leaves, structure.leaves, strict=True)
        for name, then, now in leaves:
            if then is DYNAMIC and now is not DYNAMIC:
                return f"`{name}` was an array and is now static"
            if then is not DYNAMIC and now is DYNAMIC:
                return f"`{name}` was the static {then!r} and is now an array"
            if then is not DYNAMIC and static_key(then) != static_key(now):
                return f"the static `{name}` was {then!r} and is now {now!r}"
        then, now = str(self.structure.treedef), str(structure.treedef)
        if then == now:  # it shows statics as they are now
            return "a static was changed since then"
        return f"the pytree structure was\n{then}\nand is now\n{now}"


class _Call:
    """A call that is being compiled ahead of time.

    `bind` turns the user's arguments into bound values.
    """

    def __init__(
        self,
        function: Function,
        bind: Callable[..., tuple[Any, ...]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ):
        self.function = function
        self.bind = bind
        values = bind(*args, **kwargs)
        specialization, arrays = function.find(values)
        self.specialization = specialization
        self.expected = Expected(
            function,
            values,
            specialization,
            f"The compiled {function.info.name} was called with different arguments "
            "than it was lowered for:",
        )
        structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
        # Without the arrays, which this does not keep alive.
        self.named = function.named(self.expected.structure.rebuild(structs))
        self._event: _events.Event | None = None
        with self.stage():
            self.traced = specialization.jitted.trace(*arrays)

    def plan_of(self, handle: Any) -> Any:
        """How to build a result."""
        return self.specialization.flat.plans[handle]

    @contextlib.contextmanager
    def stage(self) -> Generator[None, None, None]:
        """A stage, which emits an event of what JAX does in it."""
        engine = engine_module()
        outer = engine.set_active(self.specialization)
        try:
            with _events.stage(lambda: self.named, self._event) as self._event:
                yield
        finally:
            engine.set_active(outer)

    def arrays_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The arrays of a call, which must match the one that was lowered."""
        return self.expected.arrays_of(self.bind(*args, **kwargs))


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
        return f"<{type(self).__name__} of {self._call.function.info.qualname}>"

    @property
    def out_info(self) -> Any:
        """The result, with a `jax.ShapeDtypeStruct` for each array."""
        leaves, handle = split_output(self._stage.out_info)
        return self._call.plan_of(handle).build(leaves)


class Compiled(_Stage, Generic[_P, _T]):
    """A compiled function, for arguments like those it was lowered for."""

    def __init__(self, call: Any, stage: Any, callbacks: bool):
        super().__init__(call, stage)
        self._callbacks = callbacks
        # Whether all calls block: the first call decides, as all have the same devices.
        self._blocks: bool | None = None

    @property
    def compiled(self) -> jax.stages.Compiled:
        """JAX's own, of a function of the arrays alone."""
        return self._stage

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run the compiled function.

        **Arguments:** like those it was lowered for: the same structure, statics,
        shapes and dtypes.

        **Returns:** the result. Raises `TypeError`, which names the leaf, for other
        arguments.
        """
        __tracebackhide__ = True
        call = self._call
        arrays, reads_numpy = copied(call.arrays_of(args, kwargs))
        try:
            results, handle = split_output(self._stage(*arrays))
            if self._blocks is None:
                self._blocks = not call.function.options.asynchronous or must_block(
                    self._callbacks, [*arrays, *results]
                )
            block(results, arrays, self._blocks or reads_numpy)
        except Exception as e:
            raise call.function.translate(e)  # noqa: B904
        return call.plan_of(handle).build(results)


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
        with self._call.stage():
            stage = self._stage.compile(compiler_options=compiler_options)
            callbacks = has_host_callbacks(self._call.traced)
        return Compiled(self._call, stage, callbacks)


class Traced(_Stage, Generic[_P, _T]):
    """A function traced for certain arguments. The trace is `jaxpr`."""

    def lower(self, **kwargs: Any) -> Lowered[_P, _T]:
        """Lower to StableHLO.

        **Arguments:** those of `jax.stages.Traced.lower`.

        **Returns:** a `Lowered`.
        """
        if EXPORT_OPTION in kwargs:  # else it exports the function of the arrays alone
            raise ValueError(
                f"`jax.export.export` of {self._call.function.info.name}: what is "
                "exported must be the result of `jax.jit`. Export `jax.jit(f)`, or use "
                "`f.export(...)`."
            )
        with self._call.stage():
            return Lowered(self._call, self._stage.lower(**kwargs))


def trace(
    function: Function,
    bind: Callable[..., tuple[Any, ...]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Traced[..., Any]:
    """Trace a function for a call with these arguments."""
    call = _Call(function, bind, args, kwargs)
    return Traced(call, call.traced)
