"""A user's function under one set of options, and what has been compiled for it.

A *specialization* is kept for each distinct signature (`_partition.py`): a public
`jax.jit` of a function of the call's arrays alone, everything else being fixed. A call
is partitioned, its specialization is looked up and called, and the result is built from
the arrays that come back and from the *plan* that was made when it was traced.

With the native engine all of that happens in `_native.c`, which calls this file on a
cache miss. Without it, `Function.call` does it.
"""

import contextlib
import functools
import inspect
import itertools
import os
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.extend.core.primitives
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from . import _compat, _record
from ._binding import Spec
from ._errors import (
    explain_runtime_error,
    static_field_with,
    UnhashableStaticError,
)
from ._nodes import ARRAY_TYPES, classify, sort_keys
from ._partition import (
    ANY_ARRAY,
    DYNAMIC,
    partition,
    Plan,
    ResultHandle,
    same_trail,
    StaticLeafError,
    Structure,
    Walk,
    walk,
)
from ._place import place_of
from ._static_keys import array_key, opaque_key, policy_of, StaticArray


_compat.hide_from_tracebacks(__file__)

# Specializations kept for one function; beyond, the oldest quarter is dropped.
_MAX_SPECIALIZATIONS = 4096


class Options(NamedTuple):
    """What was passed to `filter_jit` beside the function."""

    donate_first: bool = False
    donate_rest: bool = False
    filter_warning: bool = False
    # Sorted `(name, value)` pairs for `jax.jit`.
    jit_kwargs: tuple[tuple[str, Any], ...] = ()
    in_shardings: Any = None
    out_shardings: Any = None


# --- which engine --------------------------------------------------------------------

_ENGINES = ("auto", "native", "python")

# Compared by identity, as plain functions are. They are what activations are, often in
# the configuration of a layer.
_FUNCTION_TYPES = (type, type(jax.jit(len)), jax.custom_jvp, jax.custom_vjp)


@functools.cache
def _load_native() -> Any:
    """The compiled engine. Raises `ImportError` where it cannot be used."""
    registry = _compat.node_registry()
    if registry is None:
        raise ImportError(
            f"JAX {jax.__version__} does not show which types are registered as nodes"
        )
    from . import _native  # pyright: ignore[reportAttributeAccessIssue]

    _native.setup(
        registry=registry,
        classify=classify,
        policy_of=policy_of,
        opaque_key=opaque_key,
        array_key=array_key,
        sort_keys=sort_keys,
        check_ends=jtu.tree_structure,
        call_class=Call,
        block=block,
        reads_numpy=reads_numpy,
        eager_handle=_EAGER,
        instance_dict=_compat.INSTANCE_DICT,
        function_types=_FUNCTION_TYPES,
        numpy_type=np.ndarray,
        copied_bytes=_COPIED_BYTES,
    )
    _register_handle(_native)
    return _native


@functools.cache
def _register_handle(native: Any) -> None:
    jtu.register_pytree_node(
        native.Handle, native.flatten_handle, native.unflatten_handle
    )


_state: dict[str, Any] = {}


def native() -> Any:
    """The compiled engine, or `None` where the Python engine is in use.

    Decided when the first function is wrapped, so that importing this library costs
    nothing and cannot fail.
    """
    try:
        return _state["native"]
    except KeyError:
        pass
    wanted = os.environ.get("EQX_FASTJIT_ENGINE", "auto")
    if wanted not in _ENGINES:
        raise ValueError(
            f"EQX_FASTJIT_ENGINE={wanted!r} is not an engine; expected one of "
            f"{', '.join(map(repr, _ENGINES))}."
        )
    chosen = None
    if wanted != "python":
        try:
            chosen = _load_native()
        except ImportError as e:
            if wanted == "native":
                raise RuntimeError(
                    f"EQX_FASTJIT_ENGINE=native, but the native engine is not "
                    f"available ({e})."
                ) from e
    _prepare()
    return _state.setdefault("native", chosen)


@functools.cache
def _prepare() -> None:
    _compat.silence_equinox_callback_log()
    _compat.correct_cache_miss_log(lambda: _innermost() is not None)
    _compat.on_clear_caches(clear_all)
    _record.listen(_open_innermost)


def engine() -> str:
    """The engine in use: `"native"`, the C extension, or `"python"`.

    Chosen when the first function is wrapped: native if it is available, unless
    `EQX_FASTJIT_ENGINE` in the environment is `native` or `python`.
    """
    return "python" if native() is None else "native"


# --- calls and specializations -------------------------------------------------------


@contextlib.contextmanager
def quiet_donation() -> Iterator[None]:
    """Hides JAX's warning of donated buffers that it cannot use."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Some donated buffers were not usable*"
        )
        yield


class Call:
    """A call of a jitted function that a thread is in the middle of."""

    __slots__ = (
        "abstract",
        "eager_result",
        "function",
        "quiet",
        "run",
        "specialization",
        "values",
    )

    def __init__(
        self,
        function: "Function",
        specialization: Any,
        values: tuple[Any, ...],
        abstract: bool = False,
    ):
        self.function = function
        # Whether a `jax.ShapeDtypeStruct` stands for an array.
        self.abstract = abstract
        self.specialization = specialization
        # One per parameter.
        self.values = values
        # For the record, once something is traced or compiled.
        self.run: Any = None
        # Hides warnings while something is lowered.
        self.quiet: Any = None
        # Under `jax.disable_jit()`.
        self.eager_result: Any = None

    def open_run(self) -> None:
        """Begin a record of this call, if there is none yet."""
        if self.run is None:
            function = self.function
            arguments = functools.partial(function.named, self.values)
            self.run = _record.begin(function.history, arguments)
            if function.options.filter_warning:
                self.quiet = quiet_donation()
                self.quiet.__enter__()

    def close_run(self) -> None:
        """End the record, if one was begun."""
        if self.quiet is not None:
            self.quiet.__exit__(None, None, None)
        if self.run is not None:
            _record.end(self.run)


class _Calls(threading.local):
    """The calls that this thread is in the middle of, the innermost last."""

    def __init__(self) -> None:
        self.pending: list[Call] = []


_calls = _Calls()


@contextlib.contextmanager
def calling(call: Call) -> Iterator[None]:
    """The context of whatever may trace a specialization for a call."""
    engine = native()
    if engine is not None:
        with engine.Calling(call):
            yield
        return
    _calls.pending.append(call)
    try:
        yield
    finally:
        _calls.pending.pop()


def _call_of(specialization_of: "_Flat") -> Call:
    """The innermost call of the specialization that JAX traces."""
    engine = native()
    if engine is not None:
        call = engine.find_call(specialization_of)
    else:
        calls = reversed(_calls.pending)
        found = [x for x in calls if x.specialization.flat is specialization_of]
        call = found[0] if found else None
    if call is None:
        raise RuntimeError("a specialization was traced outside of a call")
    return call


def _innermost() -> Call | None:
    engine = native()
    if engine is not None:
        return engine.innermost_call()
    return _calls.pending[-1] if _calls.pending else None


def _open_innermost() -> None:
    """JAX lowers or compiles: begin the record of the call that this is for."""
    call = _innermost()
    if call is not None:
        call.open_run()


class _ArrayParameter(inspect.Parameter):
    """A parameter whose name is the path of an array, for JAX's error messages."""

    def __init__(self, path: str):
        super().__init__("array", inspect.Parameter.POSITIONAL_ONLY)
        self._name = path


class _Flat:
    """The function that JAX traces: arrays in, arrays out.

    The rest comes from the call that it is traced for, each time. A specialization is
    traced again for other shapes, and the statics of an earlier call may have been
    changed since, or may only be equal to those of this one.

    An object rather than a function, so that JAX's logs can name the user's function
    without this holding on to it: `__wrapped__` goes through weak references.
    """

    def __init__(self, function: "Function", paths: Iterable[str]):
        self.function = weakref.ref(function)
        self.traced = False
        self.__name__ = function.name
        self.__qualname__ = function.qualname
        self.__signature__ = inspect.Signature(
            [_ArrayParameter(path) for path in dict.fromkeys(paths)]
        )

    def __repr__(self) -> str:
        return f"<function {self.__qualname__}>"  # some of JAX's errors show it

    @property
    def __wrapped__(self) -> Any:
        function = self.function()
        source = None if function is None else function.source()
        if source is None:
            raise AttributeError("__wrapped__")
        return source

    def __call__(self, *arrays: Any) -> Any:
        __tracebackhide__ = True
        # `eqx.error_if` looks for this name in the stack while tracing, to tell what is
        # inside of JIT from what is outside.
        __equinox_jit_id__ = b"eqx_fastjit"  # noqa: F841
        if getattr(_reading, "now", False):
            raise LookupError("JAX no longer has the trace")
        function = self.function()
        assert function is not None
        call = _call_of(self)
        if _is_jit_disabled():
            call.eager_result = function.call_without_jit(call.values)
            return [_EAGER]
        call.open_run()
        with _record.tracing(function.history, function.source()):
            _, structure = partition(call.values, abstract=call.abstract)
            out = function.call_python(*structure.rebuild(arrays))
        handle, out_arrays, tree = _make_plan(call.specialization, out)
        self.traced = True
        if function.options.out_shardings is None:
            return [*out_arrays, handle]
        # The user's own structure, for which the shardings are a prefix.
        return tree, handle


def _make_plan(specialization: Any, out: Any) -> tuple[Any, list[Any], Any]:
    """What a trace hands back to JAX: a handle, and the arrays of the result.

    The arrays also in the tree of the result, with `None` for all else.
    """
    leaves, treedef = jtu.tree_flatten(out)
    are_arrays = [isinstance(x, ARRAY_TYPES) for x in leaves]
    pairs = list(zip(leaves, are_arrays, strict=True))
    structure = Structure(treedef, tuple([DYNAMIC if a else x for x, a in pairs]))
    arrays = [x for x, a in pairs if a]
    plan = Plan(structure)
    engine = native()
    handle: Any
    if engine is None:
        handle = ResultHandle()
    else:
        handle = engine.Handle()
        handle.set_plan(plan)
    specialization.plans[handle] = plan
    return (
        handle,
        arrays,
        jtu.tree_unflatten(treedef, [x if a else None for x, a in pairs]),
    )


_reading = threading.local()


def kept_trace(jitted: Any, arrays: Sequence[Any]) -> Any:
    """What JAX keeps of a call that has just been made.

    Raises `LookupError` if it was dropped, say by `jax.clear_caches()` in the function
    itself: nothing is traced for it.
    """
    _reading.now = True
    try:
        return jitted.trace(*arrays)
    finally:
        _reading.now = False


def split_result(out: Any) -> tuple[list[Any], Any]:
    """The arrays, and the handle, of what a compiled function returned."""
    if type(out) is list:
        return out[:-1], out[-1]
    tree, handle = out
    return jtu.tree_leaves(tree), handle


def result_of(jitted: Any, arrays: Sequence[Any], *, eager: bool = False) -> Any:
    """The result of a specialization once more, for one of `_record.called`.

    `eager` runs the user's function without jit.
    """
    call = _call_of(jitted.__wrapped__)
    out = (jitted.__wrapped__ if eager else jitted)(*arrays)
    out_arrays, handle = split_result(out)
    return call.specialization.plans[handle].build(out_arrays)


# Comes back in place of a result under `jax.disable_jit()`.
_EAGER = ResultHandle()


class Specialization:
    """What is compiled for one signature of one function, on the Python engine.

    `jitted` takes the arrays of a call, by position.
    """

    __slots__ = ("flat", "jitted", "plans", "trail", "witnesses")

    def __init__(self, jitted: Any, flat: _Flat):
        self.jitted = jitted
        self.flat = flat
        self.trail: list[Any] = []
        # By the handle that a trace gave.
        self.plans: dict[Any, Plan] = {}
        # Mutable statics that it was traced with, and their number among those of the
        # call. What was traced may refer to these very objects.
        self.witnesses: list[tuple[int, Any]] = []

    def add_witnesses(self, found: Walk) -> None:
        """A call with these statics was traced."""
        known = {(i, id(x)) for i, x in self.witnesses}
        for i, (x, _, _) in enumerate(found.mutable):
            if (i, id(x)) not in known:
                self.witnesses.append((i, x))

    def is_stale(self, found: Walk) -> bool:
        """Whether a static that it was traced with has been changed since."""
        for i, x in self.witnesses:
            current, start, stop = found.mutable[i]
            if x is not current and not same_trail(x, self.trail[start:stop]):
                return True
        return False


class Function:
    """One user callable under one set of options."""

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
        # Weak: this lives in a table whose entries die with their function.
        self.fun = None if with_fun else weakref.ref(fun)
        self.source = _weak_source(fun)
        self.history = _record.history(*names, place_of(self.source()))
        engine = native()
        # By signature. (The native engine has a table of its own.)
        self.specializations: dict[tuple[Any, ...], Specialization] = {}
        self.table = None if engine is None else engine.Table(_MAX_SPECIALIZATIONS)
        # Signatures less the arrays in static fields, with those arrays.
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
        return self.call_python(*jtu.tree_map(lambda x: x, values))

    def split(self, values: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """The user's function, and one value per parameter."""
        if self.fun is not None:
            return self.fun(), values
        i = self.spec.fun_index()
        return values[i], values[:i] + values[i + 1 :]

    def call(self, values: tuple[Any, ...]) -> Any:
        """A call, on the Python engine; and what the native one leaves to it."""
        __tracebackhide__ = True
        if _is_jit_disabled():
            return self.call_without_jit(values)
        found = self.walk(values)
        arrays = copied(found.arrays)
        specialization = self.find(found, values)
        call = Call(self, specialization, values)
        with calling(call):
            try:
                out = specialization.jitted(*arrays)
            except BaseException as e:
                self.failed(call, e)
                raise
            if call.run is not None and found.mutable:
                specialization.add_witnesses(found)
            self.finished(call, arrays)
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
        trace = run[0].trace
        if trace is None or not _record.called:
            return
        with calling(call):  # for `result_of`
            for callback in tuple(_record.called):
                callback(trace, call.specialization.jitted, list(arrays))

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
        """The result of a call, from what the compiled function returned.

        `compiled` says that something was compiled for it: a trace that is known may
        now run on other devices.
        """
        out, handle = split_result(out)
        plan = specialization.plans[handle]
        if plan.blocks is None or (compiled and not plan.blocks):
            self.decide_blocks(specialization, plan, arrays, out)
        if plan.blocks or reads_numpy(arrays):
            block(out)
        return plan.build(out)

    def plan_of(self, values: tuple[Any, ...]) -> tuple[Plan, list[Any]]:
        """Make a call; the plan for its result, and the arrays that came back."""
        specialization = self.specialization_for(values)
        call = Call(self, specialization, values)
        with calling(call):
            out = specialization.jitted(*self.walk(values).arrays)
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
        callbacks = self.has_callbacks(specialization, arrays)
        plan.blocks = must_block(callbacks, [*arrays, *results])
        return plan.blocks

    def has_callbacks(self, specialization: Any, arrays: Sequence[Any]) -> bool:
        """Whether the program that a call has just run has host callbacks."""
        try:
            return has_host_callbacks(kept_trace(specialization.jitted, arrays))
        except Exception:
            # Be on the safe side. `jax.jit` has been replaced; or the trace has been
            # dropped (`jax.clear_caches()` in the function itself); or it cannot be
            # lowered by itself (`psum` in an eager `shard_map`, an unchecked `check`).
            return True

    def translate(self, error: BaseException) -> BaseException | None:
        """A better exception to raise in place of `error`, if there is one."""
        return explain_runtime_error(error)

    # --- specializations ---

    def specialization_for(self, values: tuple[Any, ...]) -> Any:
        """That of a call; a `jax.ShapeDtypeStruct` may stand for an array."""
        found = self.walk(values, abstract=True)
        if self.table is None:
            return self.find(found, values)
        is_struct = [isinstance(x, jax.ShapeDtypeStruct) for x in found.arrays]
        concrete = values
        if any(is_struct):
            concrete = jtu.tree_map(
                lambda x: ANY_ARRAY if type(x) is jax.ShapeDtypeStruct else x, values
            )
        try:
            return self.table.get(self, concrete)
        except Exception:
            # What the native walk makes nothing of is a matter for the reference, as in
            # a call.
            return self.find(found, values)

    def find(self, found: Walk, values: tuple[Any, ...]) -> Specialization:
        """The specialization for a call, made if there is none."""
        key = tuple(found.trail)
        specialization = self.specializations.get(key)
        if specialization is not None and specialization.is_stale(found):
            self.forget(specialization)
            specialization = None
        if specialization is None:
            self.check_static_arrays(values, key)
            specialization = self.specialize(values, Specialization)
            specialization.trail = found.trail
            # Another thread may have been quicker.
            specialization = self.specializations.setdefault(key, specialization)
            if len(self.specializations) > _MAX_SPECIALIZATIONS:
                self.evict()
        return specialization

    def miss(self, values: tuple[Any, ...]) -> Any:
        """A specialization for a call that is a cache miss of the native engine."""
        self.check_static_arrays(values, tuple(self.walk(values).trail))
        return self.specialize(values, native().Specialization)

    def specialize(self, values: tuple[Any, ...], cls: Callable[..., Any]) -> Any:
        """A new specialization for a call."""
        options = self.options
        kwargs = dict(options.jit_kwargs)
        if options.donate_first or options.donate_rest:
            kwargs["donate_argnums"] = self.donated(values)
        if options.in_shardings is not None:
            kwargs["in_shardings"] = self.flatten_in_shardings(values)
        if options.out_shardings is not None:
            kwargs["out_shardings"] = (options.out_shardings, None)
        try:
            paths = self.array_paths(values)
        except Exception:  # a user's class whose flatten function with keys is wrong
            paths = [f"array{i}" for i in range(len(partition(values)[0]))]
        flat = _Flat(self, paths)
        with warnings.catch_warnings():
            # `device` and `backend` are deprecated; said once, when wrapping.
            if "device" in kwargs or "backend" in kwargs:
                warnings.simplefilter("ignore", DeprecationWarning)
            jitted = jax.jit(flat, **kwargs)
        return cls(jitted, flat)

    def evict(self) -> None:
        """Forget the oldest quarter of the specializations."""
        n = _MAX_SPECIALIZATIONS // 4 + 1
        for key in list(itertools.islice(self.specializations, n)):
            self.specializations.pop(key, None)
        self.static_arrays.clear()

    def forget(self, specialization: Any) -> None:
        """Forget one specialization: the next call like it is a cache miss."""
        if self.table is not None:
            self.table.remove(specialization)
        # Not by its key: comparing keys may run the user's code.
        for key, other in list(self.specializations.items()):
            if other is specialization:
                self.specializations.pop(key, None)

    def clear(self) -> None:
        """Forget every trace and compiled program."""
        self.specializations.clear()
        self.static_arrays.clear()
        if self.table is not None:
            self.table.clear()

    def n_specializations(self) -> int:
        """How many specializations are kept."""
        n = 0 if self.table is None else len(self.table)
        return n + len(self.specializations)

    def donated(self, values: tuple[Any, ...]) -> tuple[int, ...]:
        """The numbers of those arrays that are to be donated."""
        options = self.options
        _, structure = partition(values, abstract=True)
        groups = [(x, options.donate_rest) for x in structure.treedef.children()]
        if self.spec.first_is_positional():
            first = groups[0][0]
            firsts = [(first, options.donate_first)]
            if self.spec.kinds[0] is inspect.Parameter.VAR_POSITIONAL:
                firsts = [(x, options.donate_rest) for x in first.children()]
                firsts[:1] = [(x, options.donate_first) for x, _ in firsts[:1]]
            groups[:1] = firsts
        out = []
        number = 0
        leaves = iter(structure.leaves)
        for treedef, donate in groups:
            for _ in range(treedef.num_leaves):
                if next(leaves) is DYNAMIC:
                    if donate:
                        out.append(number)
                    number += 1
        return tuple(out)

    def flatten_in_shardings(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """`in_shardings`, a prefix of the user's arguments, as one per array."""
        prefix = self.options.in_shardings
        fun, params = self.split(values)
        arguments = self.spec.named(params)
        if isinstance(prefix, list | tuple):
            with_arrays = [
                any(isinstance(x, _ARRAYS_OR_STRUCTS) for x in jtu.tree_leaves(value))
                for _, value in arguments
            ]
            if len(prefix) > len(arguments) or any(with_arrays[len(prefix) :]):
                names = ", ".join(name for name, _ in arguments)
                raise ValueError(
                    f"`in_shardings` has {len(prefix)} entries, but {self.name} was "
                    f"called with {len(arguments)} arguments ({names}). Expected one "
                    "sharding (or a pytree prefix of them) for each argument, or a "
                    "single one for all."
                )
            prefixes = iter([*prefix, *[None] * (len(arguments) - len(prefix))])
        else:
            prefixes = itertools.repeat(prefix)
        out: list[Any] = []
        for name, value in self.named(values):
            # The arrays of the callable itself stay where they are.
            is_fun = self.with_fun and value is fun
            out += _broadcast_prefix(None if is_fun else next(prefixes), value, name)
        return tuple(out)

    def unhashable(self, values: tuple[Any, ...], error: StaticLeafError) -> Exception:
        """The error for a static leaf without a hash, with the leaf's path."""
        where = next(path for path, x in self.leaves(values) if x is error.value)
        return UnhashableStaticError(
            f"In a call of {self.name}, `{where}` is a "
            f"{type(error.value).__name__}, which is not an array and so is static, "
            f"but cannot be hashed ({error}). Compiled functions are looked up by "
            "their static arguments. Pass a hashable value (a tuple in place of a "
            "list, a frozenset in place of a set), or an array, which is traced."
        )

    def check_static_arrays(
        self, values: tuple[Any, ...], key: tuple[Any, ...]
    ) -> None:
        """Refuse a call that differs from another in an array in a static field alone.

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
                where = None
                for name, value in self.named(values):
                    where = where or static_field_with(name, value, array)
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


_ARRAYS_OR_STRUCTS = (*ARRAY_TYPES, jax.ShapeDtypeStruct)
_functions: weakref.WeakSet[Function] = weakref.WeakSet()


def is_array_or_struct(x: Any) -> bool:
    """Whether `x` is an array, or says what one would be like."""
    return isinstance(x, _ARRAYS_OR_STRUCTS)


def clear_all() -> None:
    """Forget everything that was traced (`eqx.clear_caches()`)."""
    for function in list(_functions):
        function.clear()


def _broadcast_prefix(prefix: Any, value: Any, name: str) -> list[Any]:
    """One sharding per array of `value`."""

    def is_leaf(x: Any) -> bool:
        return x is None or isinstance(x, jax.sharding.Sharding)

    out: list[Any] = []

    def spread(sharding: Any, subtree: Any) -> None:
        out.extend(
            sharding
            for x in jtu.tree_leaves(subtree)
            if isinstance(x, _ARRAYS_OR_STRUCTS)
        )

    try:
        jtu.tree_map(spread, prefix, value, is_leaf=is_leaf)
    except ValueError as e:
        raise ValueError(
            f"`in_shardings` for argument `{name}` is not a pytree prefix of it: {e}"
        ) from e
    return out


def _is_jit_disabled() -> bool:
    return jax.config.jax_disable_jit  # pyright: ignore


# The most bytes of NumPy arrays that a call copies. That many take some 100 us; and a
# call which need not block leaves Python free for as long as the device works.
_COPIED_BYTES = 1 << 20


def copied(arrays: Sequence[Any]) -> Sequence[Any]:
    """Arrays with copies in the place of NumPy's, if those are small.

    JAX does not always copy such an argument, so the caller must not get a chance to
    reuse the buffer before the device is done. Nobody else can write to a copy.
    """
    if not any(type(x) is np.ndarray for x in arrays) or reads_numpy(arrays):
        return arrays
    return [x.copy() if type(x) is np.ndarray else x for x in arrays]


def reads_numpy(arrays: Sequence[Any]) -> bool:
    """Whether a computation may read memory that NumPy can write to.

    Of small arrays it has `copied`. Under an eager transformation the array is inside
    of a tracer, and of that there is no copy.
    """
    n_bytes = 0
    for x in arrays:
        if type(x) is np.ndarray:
            n_bytes += x.nbytes
        elif isinstance(_compat.concrete(x), np.ndarray):
            return True
    return n_bytes > _COPIED_BYTES


def on_virtual_devices(arrays: Sequence[Any]) -> bool:
    """Whether an array is on several devices of the CPU."""
    concrete = [x for x in arrays if not isinstance(x, Tracer)]  # those do not say
    shardings = {x.sharding for x in concrete if isinstance(x, jax.Array)}
    devices = [s.device_set for s in shardings if len(s.device_set) > 1]
    return any(next(iter(d)).platform == "cpu" for d in devices)


def must_block(callbacks: bool, arrays: Sequence[Any]) -> bool:
    """Whether a call must block, however it is made: jitted, compiled or exported.

    A host callback may raise after the dispatch. And virtual CPU devices share one pool
    of threads: where several runs with collectives are in flight, they may starve each
    other, and XLA ends the process after 40 s ("Termination timeout for all reduce"),
    also under `jax.jit`. Equinox's calls block; programs rely on it.

    **Arguments:**

    - `callbacks`: whether the program has host callbacks.
    - `arrays`: the arguments and results. All results of a program are on all of its
        devices, where the arguments may have been on one.
    """
    return callbacks or on_virtual_devices(arrays)


def block(arrays: Sequence[Any]) -> None:
    """Wait for a computation: the results of one are ready together.

    Also under an eager transformation, whose tracers hold results; not as a part of a
    trace.
    """
    staged = False
    for array in arrays:
        concrete = _compat.concrete(array)
        if isinstance(concrete, Tracer):
            staged = True
        elif isinstance(concrete, jax.Array):  # and not `float0`, which is NumPy's
            concrete.block_until_ready()
            return
    if not staged:
        jax.effects_barrier()


# Primitives whose lowering is JAX's own, and calls nothing but what its jaxprs say.
_JAX_PRIMITIVES = frozenset(
    {
        id(x)
        for x in vars(jax.extend.core.primitives).values()
        if isinstance(x, jax.extend.core.Primitive)
    }
)


def has_host_callbacks(traced: jax.stages.Traced) -> bool:
    """Whether running what was traced calls back into Python, which may raise.

    The lowering of a primitive that is not JAX's (`lineax.linear_solve`,
    `equinox.internal.noinline`) may have callbacks of which the jaxpr shows nothing, so
    there the text of the program is searched.
    """
    seen: set[int] = set()
    pending: list[Any] = [traced.jaxpr]
    foreign = False
    while pending:
        value = pending.pop()
        if isinstance(value, tuple | list):
            pending.extend(value)
            continue
        value = getattr(value, "jaxpr", value)  # closed or open
        if not hasattr(value, "eqns") or id(value) in seen:
            continue
        seen.add(id(value))  # alive, as `traced` is
        for equation in value.eqns:
            name = equation.primitive.name
            if name.endswith("callback") or name == "debug_print":
                return True
            foreign = foreign or id(equation.primitive) not in _JAX_PRIMITIVES
            pending.extend(equation.params.values())
    return foreign and "callback" in traced.lower().as_text()


def _weak_source(fun: Any) -> Callable[[], Any]:
    """A weak reference to the Python function behind a callable, for JAX's logs."""
    for _ in range(20):
        if isinstance(fun, types.FunctionType):
            return weakref.ref(fun)
        if isinstance(fun, functools.partial | eqx.Partial):
            fun = fun.func
        elif isinstance(fun, types.MethodType):
            fun = fun.__func__
        elif hasattr(fun, "__wrapped__"):
            fun = fun.__wrapped__
        else:
            fun = vars(type(fun)).get("__call__")
    return lambda: None
