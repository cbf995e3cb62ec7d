"""Ahead-of-time compilation: trace, then lower, then compile a call.

Each stage wraps the one in `jax.stages`, and has its attributes. It adds the user's
calling convention, and checks that calls match the one that was lowered.
"""

import contextlib
import inspect
import types
from collections.abc import Generator, Sequence
from typing import Any, Generic, ParamSpec, TYPE_CHECKING, TypeVar

import jax
import jax.tree_util as jtu

from . import _facts
from ._blocking import decide, has_host_callbacks
from ._engine import Base, connect, ENGINE
from ._function import Function
from ._result import flat_output


# Those of the function, so that a compiled call is checked as a call of it is.
_P = ParamSpec("_P")
_T = TypeVar("_T")


class StagedCall:
    """A call of a jitted function or bound method that is compiled ahead of time.

    To a compiled call it is what a `Function` is to others (`_engine.Callee`).
    """

    n_positional = -1

    def __init__(self, jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.function: Function = jitted._function
        self.complete_call = self.function.complete_call
        self.error_of_call = self.function.error_of_call
        self.bind = jitted._bind

        values = self.bind(*args, **kwargs)
        own, specialization, arrays = self.function.specialization_for(values)
        self.specialization = specialization

        # A table of its own: that of the function may be cleared. `own` is the
        # signature of this very call, with its objects; those of the specialization
        # that was found may be others, which are changed later. If it is not certain
        # for which calls it is, the table is empty, and all calls raise.
        own.jitted, own.flat = specialization.jitted, specialization.flat
        is_certain = own.flat.kept and own == specialization
        self.table = {own: own} if is_certain else {}
        self.last = types.CellType()

        self._first = None
        with self.stage(arrays):
            self.traced = specialization.jitted.trace(*arrays)
        # Another thread, or the function, may have written to a static meanwhile.
        if specialization.is_stale():
            self.function.forget(specialization)
            self.table.clear()
        # Not the arrays themselves.
        self._structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]

    @contextlib.contextmanager
    def stage(self, arrays: Sequence[Any] = ()) -> Generator[None, None, None]:
        """A stage, of which there is a fact if JAX has to do anything."""
        outer = ENGINE.set_active(self.specialization)
        try:
            fact = _facts.open_stage(self._first, arrays)
            self._first = self._first or fact
            yield
        finally:
            _facts.close()
            ENGINE.set_active(outer)

    def specialize(self, values: tuple[Any, ...]) -> Any:
        """Raise the error of a call that is another than the one that was lowered."""
        from ._texts import difference  # for errors alone

        why = "a static was changed in place, or a `jax.ShapeDtypeStruct` is no array"
        with contextlib.suppress(Exception):  # of the user's `__eq__`, say
            then = self.specialization.flat.structure.rebuild(self._structs)
            then, now = map(self.function.arguments_of, (then, values))
            why = difference(dict(then), dict(now)) or why
        raise TypeError(
            f"The compiled {self.function.info.name} was called with different "
            f"arguments than it was lowered for: {why}."
        )


class _Stage:
    """Common to all stages: whatever we do not define is JAX's."""

    _stage: Any = None  # of a copy that is being made

    # `Any`: else the types of the public face would go on into every private file.
    def __init__(self, call: Any, stage: Any):
        self._call: StagedCall = call
        self._stage = stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._call.function.info.qualname}>"

    @property
    def out_info(self) -> Any:
        """The result, with a `jax.ShapeDtypeStruct` for each array."""
        *leaves, handle = flat_output(self._stage.out_info)
        return handle().build(leaves)


class Compiled(_Stage, Generic[_P, _T], Base):
    """A compiled function, for arguments like those it was lowered for."""

    def __init__(self, call: Any, stage: Any):
        super().__init__(call, stage)
        connect(self, call, call.bind, stage)
        self.__signature__ = inspect.signature(call.bind)

    def __copy__(self) -> Any:
        return self  # it is never changed

    @property
    def compiled(self) -> "jax.stages.Compiled":
        """JAX's own, of a function of the arrays alone."""
        return self._stage

    if TYPE_CHECKING:

        def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T:
            """Run the compiled function.

            **Arguments:** like those it was lowered for: the same structure, statics,
            shapes and dtypes.

            **Returns:** the result. Raises `TypeError`, which names the leaf, for other
            arguments.
            """
            ...


class Lowered(_Stage, Generic[_P, _T]):
    """A function lowered for certain arguments."""

    @property
    def lowered(self) -> "jax.stages.Lowered":
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
        call = self._call
        asynchronous = call.function.options.asynchronous
        with call.stage():
            stage = self._stage.compile(compiler_options=compiler_options)
            # Calls of the function have the same plan, but may be on other devices:
            # they may then wait for more than they need, and never for less.
            places = jtu.tree_leaves((stage.input_shardings, stage.output_shardings))
            plan = flat_output(stage.out_info)[-1]()
            decide(plan, lambda: has_host_callbacks(call.traced), asynchronous, places)
        return Compiled(call, stage)


class Traced(_Stage, Generic[_P, _T]):
    """A function traced for certain arguments. The trace is `jaxpr`."""

    def lower(self, **kwargs: Any) -> Lowered[_P, _T]:
        """Lower to StableHLO.

        **Arguments:** those of `jax.stages.Traced.lower`.

        **Returns:** a `Lowered`.
        """
        # A private option is from `jax.export`, which takes whatever can be lowered: it
        # would export the function of the arrays alone.
        if any(name.startswith("_") for name in kwargs):
            raise ValueError(
                f"`jax.export.export` of {self._call.function.info.name}: what is "
                "exported must be the result of `jax.jit`. Export `jax.jit(f)`, or use "
                "`f.export(...)`."
            )
        with self._call.stage():
            return Lowered(self._call, self._stage.lower(**kwargs))
