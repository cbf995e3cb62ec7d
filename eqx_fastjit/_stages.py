"""Ahead-of-time compilation: trace, then lower, then compile a call.

Each stage wraps the one in `jax.stages`, and has its attributes. It adds the user's
calling convention, and checks that calls match the one that was lowered.
"""

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import jax

from . import _facts
from ._blocking import block, has_host_callbacks, RESULTS, what_to_wait_for
from ._donation import name_donated
from ._engine import engine_module
from ._errors import clearer
from ._function import Function
from ._reference import split_output
from ._texts import Part, parts_of


# Those of the function, so that a compiled call is checked as a call of it is.
_P = ParamSpec("_P")
_T = TypeVar("_T")


class StagedCall:
    """A call of a jitted function or bound method that is compiled ahead of time."""

    def __init__(self, jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.function: Function = jitted._function
        self.bind: Callable[..., tuple[Any, ...]] = jitted._bind
        values = self.bind(*args, **kwargs)
        specialization, arrays, _ = self.function.specialization_for(
            values, abstract=True
        )
        self.specialization = specialization
        # A table of its own, of one: that of the function may be cleared. And another
        # call may have made the specialization, with objects that are changed later.
        engine = engine_module()
        self.table = engine.Table(1)
        own, _ = engine.read(values, True)
        own.jitted, own.flat = specialization.jitted, specialization.flat
        if own.flat.kept and own == specialization:
            self.table.add(own)
        # The values are not kept: they have the arrays, and may be changed.
        self.parts = parts_of(self.function.arguments_of(values))
        self._first: _facts.Fact | None = None
        with self.stage(arrays):
            self.traced = specialization.jitted.trace(*arrays)

    @contextlib.contextmanager
    def stage(self, arrays: Sequence[Any] = ()) -> Generator[None, None, None]:
        """A stage, of which there is a fact if JAX has to do anything."""
        engine = engine_module()
        outer = engine.set_active(self.specialization)
        try:
            fact = _facts.open_stage(self._first, arrays)
            self._first = self._first or fact
            yield
        finally:
            _facts.close()
            engine.set_active(outer)

    def other_call(self, values: tuple[Any, ...]) -> TypeError:
        """The error of a call that has other statics than the one that was lowered."""
        why = "a static was changed, or a `jax.ShapeDtypeStruct` is no array"
        now = parts_of(self.function.arguments_of(values))
        missing = Part("missing", None)
        with contextlib.suppress(Exception):  # of the user's `__eq__`, say
            for path in {**now, **self.parts}:
                old, new = self.parts.get(path, missing), now.get(path, missing)
                if old.key != new.key:
                    text = "another object" if old.text == new.text else new.text
                    why = f"`{path}` was {old.text} and is now {text}"
                    break
        return TypeError(
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
        leaves, plan = split_output(self._stage.out_info)
        return plan.build(leaves)


class Compiled(_Stage, Generic[_P, _T]):
    """A compiled function, for arguments like those it was lowered for."""

    def __init__(self, call: Any, stage: Any, callbacks: bool):
        super().__init__(call, stage)
        self._callbacks = callbacks
        # What calls wait for: the first call decides, as all have the same devices.
        self._waits: int | None = None

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
        values = call.bind(*args, **kwargs)
        found, arrays, reads_numpy = call.table.find(values, False)
        if found is None:
            raise call.other_call(values)
        try:
            results, plan = split_output(self._stage(*arrays))
            if self._waits is None:
                asynchronous = call.function.options.asynchronous
                self._waits = what_to_wait_for(
                    self._callbacks, asynchronous, [*arrays, *results]
                )
                reads_numpy = reads_numpy or not asynchronous
            waits = self._waits | (RESULTS if reads_numpy else 0)
            if waits:  # JAX takes no tracers here
                block(results, arrays, waits)
        except Exception as e:
            named = name_donated(e, lambda: call.function.arguments_of(values))
            raise clearer(named)  # noqa: B904
        return plan.build(results)


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
