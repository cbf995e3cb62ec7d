"""A user's function under one set of options, and its compiled specializations.

A *specialization* is kept for each distinct signature (`_partition.py`): a public
`jax.jit` of a function of the call's arrays alone, everything else being fixed. A call
is partitioned, its specialization is looked up and called, and the result is built from
the arrays that come back and from the *plan* that was made when it was traced.

With the native engine all of that happens in `_native.c`, which calls this file on a
cache miss. Without it, `Function.call` does it.
"""

import functools
import inspect
import itertools
import types
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
from jax.core import Tracer

from . import _compat, _record
from ._binding import Spec
from ._blocking import block_if, copied, has_host_callbacks, must_block
from ._engine import Call, calling, innermost_call, is_jit_disabled, native
from ._errors import explain_runtime_error, static_field_with, UnhashableStaticError
from ._keys import StaticArray
from ._nodes import is_array_or_struct
from ._options import donated, flatten_in_shardings, make_jit, Options
from ._partition import (
    ANY_ARRAY,
    partition,
    StaticLeafError,
    Structure,
    Walk,
    walk,
)
from ._place import place_of
from ._plan import Plan
from ._signals import listed
from ._specialization import Flat, kept_trace, Specialization, split_result


_compat.hide_from_tracebacks(__file__)

# The most specializations for one function. Beyond, the oldest quarter is dropped.
_MAX_SPECIALIZATIONS = 4096


class Function:
    """One user callable under one set of options."""

    # Whether it is from a file: there is a program, and no Python.
    loaded = False

    def __init__(
        self,
        fun: Any,
        spec: Spec,
        options: Options,
        names: tuple[str, str],
        *,
        with_fun: bool,
    ):
        self.spec = spec
        self.options = options
        self.name, self.qualname = names
        self.with_fun = with_fun
        # A weak reference, because this is in a table whose entries die with their
        # function.
        self.fun = None if with_fun else weakref.ref(fun)
        place = place_of(_weak_source(fun)())
        self.history = _record.history(*names, place, options.asynchronous)
        engine = native()
        # By signature. (The native engine has a table of its own.)
        self.specializations: dict[tuple[Any, ...], Specialization] = {}
        self.table = None if engine is None else engine.Table(_MAX_SPECIALIZATIONS)
        # Signatures without the arrays in static fields, and those arrays.
        self.static_arrays: dict[Any, list[Any]] = {}
        _functions.add(self)

    # --- calling ---

    def call_python(self, *values: Any) -> Any:
        """Call the user's function itself, on one value per parameter."""
        __tracebackhide__ = True
        fun, values = self.split(values)
        args, kwargs = self.spec.to_call(values)
        return fun(*args, **kwargs)

    def call_without_jit(self, values: tuple[Any, ...]) -> Any:
        """`jax.disable_jit()`. Containers are copied, as they are otherwise."""
        __tracebackhide__ = True
        out = self.call_python(*jtu.tree_map(lambda x: x, values))
        return jtu.tree_map(lambda x: x, out)

    def split(self, values: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """The user's function, and one value per parameter."""
        if self.fun is not None:
            return self.fun(), values
        i = self.spec.fun_index()
        return values[i], values[:i] + values[i + 1 :]

    def call(self, values: tuple[Any, ...]) -> Any:
        """A call on the Python engine, or one that the native engine leaves to it."""
        __tracebackhide__ = True
        if is_jit_disabled():
            return self.call_without_jit(values)
        found = self.walk(values)
        arrays = copied(found.arrays)
        specialization = self.find(found, values)
        call = Call(self, specialization, values, found.witnesses())
        with calling(call):
            try:
                out = specialization.jitted(*arrays)
            except BaseException as e:
                self.failed(call, e)
                raise
            self.finished(call, arrays)
        if specialization.witnesses:
            self.tell_outer(specialization, split_result(out)[1], call.mutable)
        return self.result(specialization, out, arrays, call.run is not None)

    def walk(self, values: tuple[Any, ...], *, abstract: bool = False) -> Walk:
        """Partition a call. Raises `UnhashableStaticError` with the leaf's path."""
        try:
            return walk(values, abstract=abstract)
        except StaticLeafError as e:
            raise self.unhashable(values, e) from None

    def finished(self, call: Call, arrays: Sequence[Any]) -> None:
        """A call has returned: end its record, if anything was traced or compiled."""
        run = call.run
        if run is None:
            return
        call.close_run()
        trace = run.trace
        if trace is None or not _record.called:
            return
        with calling(call):  # for `result_of`
            for callback in tuple(_record.called):
                callback(trace, call.specialization.jitted, list(arrays))

    def tell_outer(
        self, specialization: Any, handle: Any, mutable: tuple[Any, ...]
    ) -> None:
        """A call has returned. If it is inside of another, that refers to its trace."""
        outer, plan = innermost_call(), specialization.plans.get(handle)
        if outer is not None and plan is not None:
            outer.refer_to(plan, mutable)

    def failed(self, call: Call, error: BaseException) -> None:
        """A call has raised.

        JAX does not survive an interrupt at any point: every later call may then fail
        with "RecursionError: Recursively calling", though nothing is recursive. So the
        next call begins anew. (Other exceptions only if they came out of the trace: one
        that a compiled program raises is no reason to compile it again.)
        """
        call.close_run()
        interrupted = not isinstance(error, Exception)
        specialization = call.specialization
        if (
            interrupted
            or isinstance(error, RecursionError)
            or not specialization.flat.traced
        ):
            self.forget(specialization)

    def result(
        self, specialization: Any, out: Any, arrays: Sequence[Any], compiled: bool
    ) -> Any:
        """Build the result of a call from the output of the compiled function.

        `compiled` says that something was compiled for it: a trace that is known may
        now run on other devices.
        """
        out, handle = split_result(out)
        plan = specialization.plans[handle]
        if plan.blocks is None or (compiled and not plan.blocks):
            self.decide_blocks(specialization, plan, arrays, out)
        block_if(plan.blocks, out, arrays)
        return plan.build(out)

    def plan_of(self, values: tuple[Any, ...]) -> tuple[Plan, list[Any]]:
        """Make a call. Returns the plan for its result, and the arrays."""
        specialization = self.specialization_for(values)
        found = self.walk(values)
        call = Call(self, specialization, values, found.witnesses())
        with calling(call):
            out = specialization.jitted(*found.arrays)
        call.close_run()
        arrays, handle = split_result(out)
        return specialization.plans[handle], arrays

    def decide_blocks(
        self,
        specialization: Any,
        plan: Plan,
        arrays: Sequence[Any],
        results: Sequence[Any] = (),
    ) -> bool | None:
        """Whether calls must block.

        As a part of another trace a call never does, and it is left open.
        """
        if any(isinstance(_compat.concrete(x), Tracer) for x in arrays):
            return None
        if not self.options.asynchronous:
            plan.blocks = True
        else:
            callbacks = self.has_callbacks(specialization, arrays)
            plan.blocks = must_block(callbacks, [*arrays, *results])
        return plan.blocks

    def has_callbacks(self, specialization: Any, arrays: Sequence[Any]) -> bool:
        """Whether the program that a call has just run has host callbacks."""
        try:
            return has_host_callbacks(kept_trace(specialization.jitted, arrays))
        except Exception:
            # It is not known, so block. `jax.jit` has been replaced; or the trace has
            # been dropped (`jax.clear_caches()` in the function itself); or it cannot
            # be lowered by itself (`psum` in an eager `shard_map`, an unchecked
            # `check`).
            return True

    def translate(self, error: BaseException) -> BaseException | None:
        """A clearer exception to raise in place of `error`, if there is one."""
        return explain_runtime_error(error)

    # --- specializations ---

    def specialization_for(self, values: tuple[Any, ...]) -> Any:
        """The specialization for a call, which may have no values for its arrays."""
        found = self.walk(values, abstract=True)
        if self.table is None:
            return self.find(found, values)
        try:
            concrete = _with_arrays(values, found.arrays)
            return self.table.get(self, concrete) or self.find(found, values)
        except Exception:
            # If the native walk cannot handle the call, the reference does, as in a
            # call; or a class does not take a scalar in place of an array.
            return self.find(found, values)

    def find(self, found: Walk, values: tuple[Any, ...]) -> Specialization:
        """The specialization for a call, which is created if there is none."""
        key = tuple(found.trail)
        specialization = self.specializations.get(key)
        if specialization is not None and specialization.is_stale(found):
            self.forget(specialization)
            specialization = None
        if specialization is None:
            self.check_static_arrays(values, key)
            specialization = self.specialize(values, Specialization)
            specialization.trail = found.trail
            # Another thread may have been faster.
            specialization = self.specializations.setdefault(key, specialization)
            if len(self.specializations) > _MAX_SPECIALIZATIONS:
                n = _MAX_SPECIALIZATIONS // 4 + 1
                for oldest in list(itertools.islice(self.specializations, n)):
                    self.specializations.pop(oldest, None)
                self.static_arrays.clear()
        return specialization

    def miss(self, values: tuple[Any, ...]) -> Any:
        """A specialization for a call that is a cache miss of the native engine.

        `None` under `jax.disable_jit()`: `call` does without.
        """
        if is_jit_disabled():
            return None
        self.check_static_arrays(values, tuple(self.walk(values).trail))
        return self.specialize(values, native().Specialization)

    def structure_of(self, call: Call, n_arrays: int) -> Structure:
        """What a call is besides its arrays, while it is traced.

        A flatten function, or another thread, may have changed the arguments since they
        were looked up. Then the trace is for this call alone.
        """
        with _compat.around_trace():
            arrays, structure = partition(call.values, abstract=call.abstract)
            call.is_steady = self.is_steady(call, arrays)
        if not call.is_steady:
            self.forget(call.specialization)
        if len(arrays) != n_arrays:
            raise RuntimeError(
                f"In a call of {self.name}, the arguments had {n_arrays} arrays when "
                f"they were looked up, and {len(arrays)} when they were traced: the "
                "flatten function of a pytree node has changed them, or another thread."
            )
        return structure

    def is_steady(self, call: Call, arrays: Sequence[Any]) -> bool:
        """Whether the arguments of a call, read again, are those of its signature."""
        specialization, values = call.specialization, call.values
        try:
            if isinstance(specialization, Specialization):
                found = self.walk(values, abstract=call.abstract)
                return found.trail == specialization.trail
            return specialization.matches(_with_arrays(values, arrays))
        except Exception:  # of the user's classes
            return False

    def specialize(self, values: tuple[Any, ...], cls: Callable[..., Any]) -> Any:
        """A new specialization for a call."""
        options = self.options
        kwargs = dict(options.jit_kwargs)
        if options.donate_first or options.donate_rest:
            kwargs["donate_argnums"] = self.donated(values)
        if options.in_shardings is not None:
            kwargs["in_shardings"] = self.in_shardings(values)
        if options.out_shardings is not None:
            kwargs["out_shardings"] = (options.out_shardings, None)
        try:
            paths = self.array_paths(values)
        except Exception:  # a user's class whose flatten function with keys is wrong
            paths = [f"array{i}" for i in range(len(partition(values)[0]))]
        flat = Flat(self, paths, _weak_source(self.split(values)[0]))
        with warnings.catch_warnings():
            # `device` and `backend` are deprecated. JAX has warned already, when
            # wrapping.
            if "device" in kwargs or "backend" in kwargs:
                warnings.simplefilter("ignore", DeprecationWarning)
            jitted = make_jit(flat, **kwargs)
        # The plans are weak, since a program may have JAX forget its traces again and
        # again (`jax.clear_caches()`).
        return cls(jitted, flat, weakref.WeakKeyDictionary())

    def forget(self, specialization: Any) -> None:
        """Drop one specialization, so that the next such call is a cache miss."""
        if self.table is not None:
            self.table.remove(specialization)
        # Do not look up its key, because comparing keys may run the user's code.
        for key, other in listed(self.specializations.items()):
            if other is specialization:
                self.specializations.pop(key, None)

    def clear(self) -> None:
        """Drop all traces and compiled programs."""
        self.specializations.clear()
        self.static_arrays.clear()
        if self.table is not None:
            self.table.clear()

    def n_specializations(self) -> int:
        """The number of specializations."""
        n = 0 if self.table is None else len(self.table)
        return n + len(self.specializations)

    def donated(self, values: tuple[Any, ...]) -> tuple[int, ...]:
        """The indices of the arrays to donate."""
        return donated(self.options, self.spec, values)

    def in_shardings(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """One for each array."""
        fun = self.split(values)[0] if self.with_fun else None
        prefix = self.options.in_shardings
        return flatten_in_shardings(prefix, self.named(values), fun, self.name)

    def unhashable(self, values: tuple[Any, ...], error: StaticLeafError) -> Exception:
        """The error for a static leaf without a hash, with the leaf's path."""
        # A flatten function may make its children anew each time.
        leaves, value = self.leaves(values), error.value
        found = [path for path, x in leaves if x is value]
        found += [path for path, x in leaves if type(x) is type(value)]
        where = next(iter(found), "a leaf")
        return UnhashableStaticError(
            f"In a call of {self.name}, `{where}` is a "
            f"{type(error.value).__name__}, which is not an array and so is static, "
            f"but cannot be hashed ({error}). Compiled functions are looked up by "
            "their static arguments. Pass a hashable value (a tuple in place of a "
            "list, a frozenset in place of a set, a dataclass that is frozen), or an "
            "array, which is traced."
        )

    def check_static_arrays(
        self, values: tuple[Any, ...], key: tuple[Any, ...]
    ) -> None:
        """Reject a call that differs from another only in an array in a static field.

        Raises `ValueError` with the field's path.
        """
        arrays = [x.value for x in key if type(x) is StaticArray and not x.is_single()]
        if not arrays:
            return
        reduced = tuple([x.kind if type(x) is StaticArray else x for x in key])
        if len(self.static_arrays) >= _MAX_SPECIALIZATIONS:
            self.static_arrays.clear()
        known = self.static_arrays.setdefault(reduced, arrays)
        for array, other in zip(arrays, known, strict=True):
            if array is not other:
                found = (static_field_with(*x, array) for x in self.named(values))
                where = next(filter(None, found), None)
                what = "a pytree node's static data"
                if where is not None:
                    what = f"the static field `{where}`"
                raise ValueError(
                    f"In a call of {self.name}, {what} holds an "
                    f"array (shape {array.shape}, dtype {array.dtype}), and an earlier "
                    "call differed only in this array. Arrays in "
                    "`eqx.field(static=True)` are compared by identity, so it is not "
                    "known whether the two calls may share a compiled function. Use a "
                    "normal field, whose array is traced, or a tuple of numbers."
                )

    def leaves(self, values: tuple[Any, ...]) -> list[tuple[str, Any]]:
        """Each leaf of a call, with its path as the user would write it."""
        return [
            (f"{name}{jtu.keystr(path)}", leaf)
            for name, value in self.named(values)
            for path, leaf in jtu.tree_flatten_with_path(value)[0]
        ]

    def array_paths(self, values: tuple[Any, ...]) -> list[str]:
        """The path of each array of a call, in JAX's order."""
        return [x for x, leaf in self.leaves(values) if is_array_or_struct(leaf)]

    def named(self, values: tuple[Any, ...]) -> list[tuple[str, Any]]:
        """Each argument, and the callable if it is passed along, with its name."""
        fun, params = self.split(values)
        return self.spec.named(params, (self.name, fun) if self.with_fun else None)


def _with_arrays(values: tuple[Any, ...], arrays: Sequence[Any]) -> tuple[Any, ...]:
    """A call with arrays in place of each `jax.ShapeDtypeStruct` among them."""
    if not any(isinstance(x, jax.ShapeDtypeStruct) for x in arrays):
        return values
    return jtu.tree_map(
        lambda x: ANY_ARRAY if type(x) is jax.ShapeDtypeStruct else x, values
    )


_functions: weakref.WeakSet[Function] = weakref.WeakSet()


def clear_all() -> None:
    """Drop all traces of all functions, for `eqx.clear_caches()`."""
    for function in listed(_functions):
        function.clear()


_compat.on_clear_caches(clear_all)


def _weak_source(fun: Any) -> Callable[[], Any]:
    """A weak reference to the Python function behind a callable, for JAX's logs."""
    for _ in range(20):
        if type(fun) is types.FunctionType:
            return weakref.ref(fun)
        if isinstance(fun, functools.partial | eqx.Partial):
            fun = fun.func
        elif isinstance(fun, types.MethodType):
            fun = fun.__func__
        elif hasattr(fun, "__wrapped__"):
            fun = fun.__wrapped__
        else:
            fun = inspect.getattr_static(type(fun), "__call__", None)
    return lambda: None
