"""Ahead-of-time compilation: trace, then lower, then compile a call.

Each stage wraps the one in `jax.stages`, and has its attributes. It adds the user's
calling convention, and checks that calls match the one that was lowered.
"""

# JAX does not mark all that it shows as such.
# pyright: reportPrivateImportUsage=false

import contextlib
import functools as ft
import itertools
from collections.abc import Callable, Generator
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar

import jax

from . import _record
from ._blocking import block_if, copied, has_host_callbacks, must_block
from ._compat import EXPORT_OPTION, hide_from_tracebacks
from ._describe import show_array
from ._engine import Call, calling, innermost_call, quiet_donation
from ._function import Function
from ._partition import DYNAMIC, partition, same_trail, Structure
from ._plan import Plan
from ._specialization import split_result
from ._static_keys import static_key


hide_from_tracebacks(__file__)

# Those of the function, so that a compiled call is checked as a call of it is.
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Expected:
    """What a compiled call was made for, to compare other calls with.

    `what` begins the message of an error. Statics with an equal `key` are the same.
    """

    def __init__(
        self,
        function: Function,
        values: tuple[Any, ...],
        what: str,
        key: Callable[[Any], Any] = static_key,
    ):
        self.function = function
        # Without its arrays, which this does not keep alive.
        self.found = function.walk(values, abstract=True)._replace(arrays=[])
        self.structure = partition(values, abstract=True)[1]
        self.names = [path for path, _ in function.leaves(values)]
        self.what = what
        self.key = key
        self.others = Plan.others
        self.keys = self._keys_of(self.structure)

    def refer_to(self, plan: Plan) -> None:
        """The trace may be one that is known, of a call with other objects."""
        known = zip(self.found.mutable, plan.mutable, strict=True)
        mutable = [(x, start, stop) for (_, start, stop), x in known]
        self.found = self.found._replace(mutable=mutable)
        self.others = plan.others

    def arrays_of(self, values: tuple[Any, ...]) -> list[Any]:
        """The arrays of a call, whose structure and statics must be the same."""
        found, known = self.function.walk(values), self.found
        if found.trail != known.trail:
            raise TypeError(f"{self.what} {self._difference(values)}.")
        mutable = zip(known.mutable, found.mutable, strict=True)
        for (then, start, stop), (now, _, _) in mutable:
            # Its results may refer to this very object, as those of a call may.
            if then is not now and not same_trail(then, known.trail[start:stop]):
                self._raise_changed(then)
        for is_same, then in self.others.values():
            if not is_same(then):
                self._raise_changed(then)
        return found.arrays

    def _raise_changed(self, x: Any) -> NoReturn:
        kind = type(x).__name__
        raise TypeError(f"{self.what} a static {kind} was changed since then.")

    def _keys_of(self, structure: Structure) -> list[Any]:
        return [x if x is DYNAMIC else self.key(x) for x in structure.leaves]

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
        keys = zip(names, self.keys, self._keys_of(structure), strict=True)
        for i, (name, ours, theirs) in enumerate(keys):
            then, now = self.structure.leaves[i], structure.leaves[i]
            if ours == theirs:
                continue
            if then is DYNAMIC:
                return f"`{name}` was an array and is now static"
            if now is DYNAMIC:
                return f"`{name}` was the static {then!r} and is now an array"
            return f"the static `{name}` was {then!r} and is now {now!r}"
        then, now = str(self.structure.treedef), str(structure.treedef)
        if then == now:  # it shows the static data as they are now
            return f"static data in the pytree structure changed:\n{now}"
        return f"the pytree structure was\n{then}\nand is now\n{now}"


class _Call:
    """A call that is being compiled ahead of time.

    `bind` turns the user's arguments into one value per parameter.
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
        self.specialization = function.specialization_for(values)
        arrays, _ = partition(values, abstract=True)
        self.types = [array_type(x) for x in arrays]
        self.expected = Expected(
            function,
            values,
            f"The compiled {function.name} was called with different arguments than it "
            "was lowered for:",
        )
        self.record: _record.Trace | None = None
        mutable = self.expected.found.witnesses()
        call = Call(function, self.specialization, values, mutable, True)
        with self.stage(ft.partial(function.named, values)) as run, calling(call):
            call.run = self.record = run.the_trace()
            self.traced = self.specialization.jitted.trace(*arrays)
        if call.is_steady is None:  # JAX had the trace
            call.is_steady = function.is_steady(call, arrays)
        if call.is_steady:
            _, handle = split_result(self.traced.out_info)
            self.expected.refer_to(self.specialization.plans[handle])
        else:
            # It is not known what was traced.
            self.expected.found.trail.append(object())  # which no call has

    def plan_of(self, handle: Any) -> Plan:
        """How to build a result, to which a call that is being traced may refer."""
        plan = self.specialization.plans[handle]
        if (plan.mutable or plan.others) and (outer := innermost_call()) is not None:
            outer.refer_to(plan)
        return plan

    @ft.cached_property
    def callbacks(self) -> bool:
        """Whether there are host callbacks. Only used once it is compiled."""
        return has_host_callbacks(self.traced)

    @contextlib.contextmanager
    def stage(self, arguments: Any = None) -> Generator[_record.Run, None, None]:
        """A stage, which is recorded, and may warn of buffers that cannot be donated.

        `arguments` gives those of the call, before there is a record.
        """
        function = self.function
        hide = function.options.filter_warning
        recorded = _record.ahead_of_time(function.history, arguments, self.record)
        with quiet_donation() if hide else contextlib.nullcontext(), recorded as run:
            yield run

    def arrays_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The arrays of a call, which must match the one that was lowered."""
        values = self.bind(*args, **kwargs)
        table, walk = self.function.table, self.expected.arrays_of
        if table is None:
            arrays = walk(values)
        else:
            # The Python walk says what is different, but takes 1 us an array, 20 times
            # as long.
            arrays = table.arrays_of(self.specialization, values, walk)
        array_types = zip(self.types, arrays, strict=True)
        for i, (then, array) in enumerate(array_types):
            if then == (array.shape, array.dtype):
                continue  # nearly all, and quicker than what follows
            if then != (now := array_type(array)):
                name = self.function.array_paths(values)[i]
                raise TypeError(
                    f"{self.expected.what} `{name}` was {show_array(*then)} and is now "
                    f"{show_array(*now)}."
                )
        return arrays


def array_type(x: Any) -> tuple[tuple[int, ...], Any]:
    """The shape of an array, and the dtype that JAX gives to one of this dtype."""
    dtype = x.dtype
    if not jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return tuple(x.shape), dtype


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
        leaves, handle = split_result(self._stage.out_info)
        return self._call.plan_of(handle).build(leaves)


class Compiled(_Stage, Generic[_P, _T]):
    """A compiled function, for arguments like those it was lowered for."""

    # Whether all calls block: the first call decides, as their devices are the same.
    _blocks: bool | None = None

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
        arrays = copied(call.arrays_of(args, kwargs))
        try:
            out, handle = split_result(self._stage(*arrays))
            if self._blocks is None:
                self._blocks = not call.function.options.asynchronous or must_block(
                    call.callbacks, [*arrays, *out]
                )
            block_if(self._blocks, out, arrays)
        except Exception as e:
            if (error := call.function.translate(e)) is None:
                raise
            raise error from None
        return call.plan_of(handle).build(out)


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
            _ = self._call.callbacks  # now, rather than in the first call
        return Compiled(self._call, stage)


class Traced(_Stage, Generic[_P, _T]):
    """A function traced for certain arguments. The trace is `jaxpr`."""

    def lower(self, **kwargs: Any) -> Lowered[_P, _T]:
        """Lower to StableHLO.

        **Arguments:** those of `jax.stages.Traced.lower`.

        **Returns:** a `Lowered`.
        """
        if EXPORT_OPTION in kwargs:  # else it exports the function of the arrays alone
            raise ValueError(
                f"`jax.export.export` of {self._call.function.name}: what is exported "
                "must be the result of `jax.jit`. Export `jax.jit(f)`, or use "
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
