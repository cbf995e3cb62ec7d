"""From a call to a compiled program.

A *function* (`JittedFunction`) is what one user callable under one set of options
becomes. It keeps a *program* for each distinct key: a `jax.jit` of a function of the
call's arrays alone, everything else being fixed. Two routes lead from a call to its
program:

- portable: take the call apart (`_structure.py`), look the program up, call it;
- C++: jaxlib's dispatcher does all of that, given our registries (`_nodes.py`). On a
  call that it has not met, it asks `JittedFunction.miss`, which goes the portable way
  and hands back the record from which the dispatcher repeats the call by itself.
"""

import concurrent.futures
import contextlib
import functools
import inspect
import itertools
import os
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from . import _compat, _record
from ._errors import (
    explain_runtime_error,
    static_field_with,
    UnhashableStaticError,
)
from ._nodes import GENERATE_AFTER, Nodes
from ._place import place_of
from ._signature import read_signature, Spec
from ._statics import without_static_arrays
from ._structure import (
    ARRAY_TYPES,
    DYNAMIC,
    has_odd_dict_keys,
    ResultInfo,
    ResultNode,
    StaticLeafError,
    Structure,
    take_apart,
    treedef_token,
)


_compat.hide_from_tracebacks(__file__)

# Programs kept for one function; beyond, the oldest are dropped.
_MAX_PROGRAMS = 4096


class Options(NamedTuple):
    """What was passed to `filter_jit` beside the function."""

    donate_first: bool = False
    donate_rest: bool = False
    filter_warning: bool = False
    # Sorted `(name, value)` pairs for `jax.jit`.
    jit_kwargs: tuple[tuple[str, Any], ...] = ()
    in_shardings: Any = None
    out_shardings: Any = None


# --- which route ---------------------------------------------------------------------

_ROUTES = ("auto", "cpp", "portable")
_lock = threading.Lock()
_state: dict[str, Any] = {}


def _choose_route() -> Nodes | None:
    wanted = os.environ.get("EQX_FASTJIT_ROUTE", "auto")
    if wanted not in _ROUTES:
        raise ValueError(
            f"EQX_FASTJIT_ROUTE={wanted!r} is not a route; expected one of "
            f"{', '.join(map(repr, _ROUTES))}."
        )
    if wanted == "portable":
        return None
    try:
        chosen = Nodes(_compat.probe_cpp())
        if not _compat.is_tested_jax():
            # In a thread of its own: the first function may be wrapped inside of a
            # trace, which belongs to its thread.
            with concurrent.futures.ThreadPoolExecutor(1) as executor:
                executor.submit(_check_cpp, chosen).result()
        return chosen
    except Exception as e:
        reason = f"{type(e).__name__}: {e}"
        if wanted == "cpp":
            raise RuntimeError(
                "EQX_FASTJIT_ROUTE=cpp, but the C++ route is not available with JAX "
                f"{jax.__version__} ({reason})."
            ) from e
        warnings.warn(
            f"eqx_fastjit does not know this JAX ({jax.__version__}; {reason}) and "
            "takes the portable route: results are the same, calls are slower.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def _check_cpp(nodes: Nodes) -> None:
    """Try the C++ route on real calls, for a JAX that it was never tested with.

    Modules, containers, statics that are equal and not the same, donation; often enough
    for code to be generated. Raises `RuntimeError` if it does not do as `jax.jit` does.
    """

    class Affine(eqx.Module):
        scale: jax.Array
        name: str = eqx.field(static=True)

    def fun(module, tree, n):
        out = module.scale * tree["x"] * n + tree["y"][0]
        return {"out": out, "n": n}, (tree["y"], module, None)

    spec, _ = read_signature(fun)

    def jitted(options: Options) -> JittedFunction:
        return JittedFunction(
            fun, spec, options, ("check", "check"), with_fun=False, nodes=nodes
        )

    function, misses = jitted(Options()), []
    miss = function.miss
    function.miss = lambda values: (misses.append(values), miss(values))[1]
    y = np.arange(3, dtype=np.float32)
    for n, name in ((2, "a"), (2.0, "a"), (3, "a"), (2, "b"), (2, "a")):
        expected = jax.jit(lambda scale, x, n=n: scale * x * n + y)
        for i in range(GENERATE_AFTER + 2):
            x = jax.numpy.full(3, i, np.float32)
            module = Affine(x + 1, name)
            (out, (ys, same, none)) = function.dispatch(module, {"x": x, "y": [y]}, n)
            good = type(out["n"]) is type(n) and out["n"] == n and none is None
            good &= (same.name, type(same)) == (name, Affine)
            good &= (same.scale == x + 1).all() and (ys[0] == y).all()
            if not (good and np.allclose(out["out"], expected(x + 1, x))):
                raise RuntimeError("a self-check gave a wrong result")
    if len(misses) > GENERATE_AFTER and not _compat.jit_is_replaced():
        raise RuntimeError("a self-check never took the fast path")

    donating = jitted(Options(donate_first=True))
    expected = jax.jit(lambda scale, x: (scale * x + y, scale), donate_argnums=0)
    for _ in range(3):
        x, mine, theirs = jax.numpy.ones(3), jax.numpy.ones(3), jax.numpy.ones(3)
        donating.dispatch(Affine(mine, ""), {"x": x, "y": [y]}, 1)
        expected(theirs, x)
        if mine.is_deleted() != theirs.is_deleted() or x.is_deleted():
            raise RuntimeError("a self-check donated the wrong arrays")


def nodes() -> Nodes | None:
    """The registries of the C++ route, or `None` on the portable route.

    Decided when the first function is wrapped, so that importing this library costs
    nothing and cannot fail.
    """
    try:
        return _state["nodes"]
    except KeyError:
        with _lock:
            if "nodes" not in _state:
                chosen = _choose_route()
                _compat.silence_equinox_callback_log()
                _compat.on_clear_caches(clear_all_programs)
                _record.listen()
                _state["nodes"] = chosen
        return _state["nodes"]


def route() -> str:
    """The route in use, `"cpp"` or `"portable"`."""
    return "portable" if nodes() is None else "cpp"


# --- programs ------------------------------------------------------------------------


class _Calls(threading.local):
    """The calls that this thread is in the middle of, with all but their arrays."""

    def __init__(self) -> None:
        self.pending: list[tuple[_Flat, Structure]] = []

    def structure_for(self, flat: "_Flat") -> Structure:
        """What the innermost call of a program was made with."""
        for other, structure in reversed(self.pending):
            if other is flat:
                return structure
        raise RuntimeError("a program was traced outside of a call")


_calls = _Calls()


class _Flat:
    """The function that JAX traces: arrays in, arrays out.

    The rest comes from the call that it is traced for, each time. A program is traced
    anew for other shapes, and the statics of an earlier call may have been changed
    since, or may only be equal to those of this one.

    An object rather than a function, so that JAX's logs can name the user's function
    without this holding on to it: `__wrapped__` goes through weak references.
    """

    def __init__(self, function: "JittedFunction", n_arrays: int):
        self.function = weakref.ref(function)
        self.traced = False
        self.__name__ = function.name
        self.__qualname__ = function.qualname
        kind = inspect.Parameter.POSITIONAL_ONLY
        self.__signature__ = inspect.Signature(
            [inspect.Parameter(f"array{i}", kind) for i in range(n_arrays)]
        )

    @property
    def __wrapped__(self) -> Any:
        function = self.function()
        source = None if function is None else function.source()
        if source is None:
            raise AttributeError("__wrapped__")
        return source

    def __call__(self, *arrays: Any) -> Any:
        __tracebackhide__ = True
        function = self.function()
        assert function is not None
        with _record.tracing(function.history, function.source()):
            structure = _calls.structure_for(self)
            out = function.call_python(*structure.rebuild(arrays))
        leaves, treedef = jtu.tree_flatten(out)
        kept = [DYNAMIC if isinstance(x, ARRAY_TYPES) else x for x in leaves]
        out_arrays = [x for x in leaves if isinstance(x, ARRAY_TYPES)]
        node = ResultNode(ResultInfo(Structure(treedef, tuple(kept))))
        self.traced = True
        if function.options.out_shardings is None:
            return out_arrays, node
        # The user's own structure, for which the shardings are a prefix.
        only_arrays = [x if isinstance(x, ARRAY_TYPES) else None for x in leaves]
        return jtu.tree_unflatten(treedef, only_arrays), node


class Program:
    """One key of one function: `jitted` takes the arrays of a call, by position."""

    __slots__ = ("flat", "jitted")

    def __init__(self, jitted: Any, flat: _Flat):
        self.jitted = jitted
        self.flat = flat

    @contextlib.contextmanager
    def called_with(self, structure: Structure) -> Iterator[None]:
        """The context of whatever may trace the program for a call."""
        _calls.pending.append((self.flat, structure))
        try:
            yield
        finally:
            _calls.pending.pop()

    def calls_back(self, arrays: Sequence[Any]) -> bool:
        """Whether a run on such arrays calls back into Python."""
        try:
            traced = self.jitted.trace(*arrays)
        except AttributeError:
            return True  # `jax.jit` has been replaced: be on the safe side
        return has_host_callbacks(traced.jaxpr)


def has_host_callbacks(jaxpr: Any) -> bool:
    """Whether running a jaxpr calls back into Python, which may raise."""
    seen: set[int] = set()
    pending = [jaxpr]
    while pending:
        value = pending.pop()
        if isinstance(value, tuple | list):
            pending.extend(value)
            continue
        value = getattr(value, "jaxpr", value)  # closed or open
        if not hasattr(value, "eqns") or id(value) in seen:
            continue
        seen.add(id(value))  # alive, as `jaxpr` is
        for equation in value.eqns:
            name = equation.primitive.name
            if name.endswith("callback") or name == "debug_print":
                return True
            pending.extend(equation.params.values())
    return False


class JittedFunction:
    """One user callable under one set of options."""

    def __init__(
        self,
        fun: Any,
        spec: Spec,
        options: Options,
        names: tuple[str, str],
        *,
        with_fun: bool,
        nodes: Nodes | None,
    ):
        self.spec = spec
        self.options = options
        self.name, self.qualname = names
        self.with_fun = with_fun
        # Weak: this lives in a table whose entries die with their function.
        self.fun = None if with_fun else weakref.ref(fun)
        self.source = _weak_source(fun)
        self.history = _record.history(*names, place_of(self.source()))
        # Reentrant: comparing keys may run the user's `__eq__`, and a signal handler
        # may run at any point.
        self.lock = threading.RLock()
        self.nodes = nodes
        self.failed_in_miss = False
        if nodes is None:
            self.dispatcher = None
            self.dispatch: Callable[..., Any] = self.call
        else:
            self.dispatcher = self.dispatch = self.make_dispatcher(nodes)
        # After the dispatcher, so that they die after it as well (`clear_dispatcher`):
        # attributes go in this order.
        self.programs: dict[Any, Program] = {}
        # Keys less the arrays in static fields, with those arrays.
        self.static_arrays: dict[Any, list[Any]] = {}
        with _functions_lock:
            _functions.add(self)

    def make_dispatcher(self, nodes: Nodes) -> Any:
        this = weakref.ref(self)

        def miss(*values: Any) -> Any:
            __tracebackhide__ = True
            function = this()
            assert function is not None
            return function.miss(values)

        def without_jit(*values: Any) -> Any:
            function = this()
            assert function is not None
            return function.call_without_jit(values)

        dispatcher = nodes.cpp.make_dispatcher(
            self.name,
            without_jit,
            miss,
            [],
            [],
            (),
            nodes.arguments,
            nodes.cpp.shard_arg,
            nodes.cache,
        )
        _compat.set_python_function(dispatcher, without_jit)
        return dispatcher

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

    def call(self, *values: Any) -> Any:
        """The portable route."""
        __tracebackhide__ = True
        if _is_jit_disabled():
            return self.call_without_jit(values)
        program, structure, arrays = self.find(values)
        with program.called_with(structure):
            result, _, _ = self.run(program, arrays, values)
        return result

    def miss(self, values: tuple[Any, ...]) -> tuple[Any, Any, bool]:
        """The dispatcher has not met this call.

        Returns the result; the record from which the dispatcher repeats the call, or
        `None` if it must ask again every time; and whether it is to forget that it
        asked.
        """
        __tracebackhide__ = True
        nodes = self.nodes
        assert nodes is not None
        try:
            program, structure, arrays = self.find(values)
            # Before the types are registered: the dispatcher took this call apart
            # without knowing them.
            agreed = nodes.agrees(values, arrays)
            fresh = nodes.meet(structure, arrays)
            with program.called_with(structure):
                result, out, fastpath = self.run(program, arrays, values)
            if fresh or not agreed:
                return result, None, fresh
            if fastpath is None or has_odd_dict_keys(structure.treedef):
                return result, None, False
            out_arrays, info = out
            waits = bool(info.calls_back) or reads_numpy(arrays)
            treedef = info.cpp_treedefs.get(waits)
            if treedef is None:
                treedef = nodes.result_treedef(result, out_arrays, info, waits=waits)
                if treedef is None:
                    return result, None, False
                info.cpp_treedefs[waits] = treedef
            return result, _compat.replace_out_treedef(fastpath, treedef), False
        except BaseException:
            self.failed_in_miss = True
            raise

    def run(
        self, program: Program, arrays: list[Any], values: tuple[Any, ...]
    ) -> tuple[Any, Any, Any]:
        """Call a program; returns the result, its parts, and the fast-path record.

        In the context `program.called_with`.
        """
        __tracebackhide__ = True
        # `eqx.error_if` looks for this name in the stack while tracing, to tell what is
        # inside of JIT from what is outside.
        __equinox_jit_id__ = b"eqx_fastjit"  # noqa: F841
        record = _record.begin(self.history, functools.partial(self.named, values))
        try:
            with self.quiet_donation():
                if self.dispatcher is None:
                    out, fastpath = program.jitted(*arrays), None
                else:
                    out, fastpath = _compat.call_with_fastpath(program.jitted, arrays)
        except BaseException as e:
            self.drop_unfinished(program, e)
            raise
        finally:
            _record.end(record)
        if _record.called and (noted := record[0].trace) is not None:
            for callback in tuple(_record.called):
                callback(noted, program.jitted, arrays)
        tree, node = out
        info = node.info
        out_arrays = tree if type(tree) is list else jtu.tree_leaves(tree)
        if not any(isinstance(x, Tracer) for x in (*out_arrays, *arrays)):
            if info.calls_back is None:
                info.calls_back = not _is_jit_disabled() and program.calls_back(arrays)
            if info.calls_back or reads_numpy(arrays):
                wait(out_arrays)
        return info.rebuild(out_arrays), (out_arrays, info), fastpath

    def translate(self, error: BaseException) -> BaseException | None:
        """A better exception to raise in place of `error`, if there is one."""
        if self.failed_in_miss:
            # The dispatcher would ask about this call for ever after. Have it forget.
            self.failed_in_miss = False
            self.clear_dispatcher({})
        return explain_runtime_error(error)

    # --- programs ---

    def find(
        self, values: tuple[Any, ...], *, abstract: bool = False
    ) -> tuple[Program, Structure, list[Any]]:
        """The program for a call, made if there is none, and the call taken apart."""
        try:
            arrays, structure, tokens = take_apart(values, abstract=abstract)
        except StaticLeafError as e:
            raise self.unhashable(values, e) from None
        key = (treedef_token(structure.treedef), tokens)
        program = self.programs.get(key)
        if program is None:
            with self.lock:
                program = self.programs.get(key)
                if program is None:
                    if len(self.programs) >= _MAX_PROGRAMS:
                        self.evict()
                    self.check_static_arrays(values, key)
                    program = self.make_program(values, arrays, structure)
                    self.programs[key] = program
        return program, structure, arrays

    def evict(self) -> None:
        """Forget the oldest quarter of the programs.

        The dispatcher has compiled programs of its own, and lets them go all or none.
        It asks again for those that are kept, which costs 0.1 ms each; so not one by
        one.
        """
        oldest = list(itertools.islice(self.programs, _MAX_PROGRAMS // 4 + 1))
        forgotten = {key: self.programs.pop(key) for key in oldest}
        self.static_arrays.clear()
        self.clear_dispatcher(forgotten)

    def drop_unfinished(self, program: Program, error: BaseException) -> None:
        """Forget a program that an exception may have left half-made.

        JAX does not survive an interrupt at any point: every later call may then fail
        with "RecursionError: Recursively calling", though nothing is recursive. So the
        next call begins anew. (Other exceptions only if they came out of the trace: one
        that a compiled program raises is no reason to compile it again.)
        """
        interrupted = not isinstance(error, Exception)
        if interrupted or isinstance(error, RecursionError) or not program.flat.traced:
            with self.lock:
                # Not by a key made anew: a static may have changed since.
                for key, other in self.programs.items():
                    if other is program:
                        del self.programs[key]
                        break

    def make_program(
        self,
        values: tuple[Any, ...],
        arrays: list[Any],
        structure: Structure,
    ) -> Program:
        options = self.options
        kwargs = dict(options.jit_kwargs)
        if options.donate_first or options.donate_rest:
            kwargs["donate_argnums"] = self.donated(structure)
        if options.in_shardings is not None:
            kwargs["in_shardings"] = self.flatten_in_shardings(values)
        if options.out_shardings is not None:
            kwargs["out_shardings"] = (options.out_shardings, None)
        flat = _Flat(self, len(arrays))
        with warnings.catch_warnings():
            # `device` and `backend` are deprecated; said once, when wrapping.
            if "device" in kwargs or "backend" in kwargs:
                warnings.simplefilter("ignore", DeprecationWarning)
            jitted = jax.jit(flat, **kwargs)
        return Program(jitted, flat)

    def donated(self, structure: Structure) -> tuple[int, ...]:
        """The numbers of those arrays that are to be donated."""
        options = self.options
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
        where = self.leaf_names(values)[error.index]
        return UnhashableStaticError(
            f"In a call of {self.name}, `{where}` is a "
            f"{type(error.value).__name__}, which is not an array and so is static, "
            f"but cannot be hashed ({error}). Static arguments are part of the key "
            "under which the compiled function is kept. Pass a hashable value (a tuple "
            "for a list, a frozenset for a set), or an array to have it traced."
        )

    def check_static_arrays(self, values: tuple[Any, ...], key: Any) -> None:
        """Refuse a call that differs from another in an array in a static field alone.

        Raises `ValueError` with the field's path.
        """
        reduced, arrays = without_static_arrays(key)
        if not arrays:
            return
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
                    "call was the same but for another array there. Arrays in "
                    "`eqx.field(static=True)` are compared by identity alone, so "
                    "whether the two may share a compiled function cannot be told. "
                    "Make the field a normal one, to have it traced, or hold a tuple "
                    "of numbers instead."
                )

    def leaf_names(self, values: tuple[Any, ...]) -> list[str]:
        """The path of each leaf of a call, as the user would write it."""
        return [
            f"{name}{jtu.keystr(path)}"
            for name, value in self.named(values)
            for path, _ in jtu.tree_flatten_with_path(value)[0]
        ]

    def named(self, values: tuple[Any, ...]) -> list[tuple[str, Any]]:
        """Each argument, and the callable if it is passed along, with its name."""
        fun, params = self.split(values)
        return self.spec.named(params, (self.name, fun) if self.with_fun else None)

    @contextlib.contextmanager
    def quiet_donation(self) -> Iterator[None]:
        """Hides JAX's warning of donated buffers that it cannot use, if asked to."""
        if not self.options.filter_warning:
            yield
            return
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="Some donated buffers were not usable*"
            )
            yield

    def clear(self) -> None:
        """Forget every trace and compiled program."""
        with self.lock:
            forgotten = dict(self.programs)
            self.programs.clear()
            self.static_arrays.clear()
        self.clear_dispatcher(forgotten)

    def clear_dispatcher(self, forgotten: dict[Any, Program]) -> None:
        """Have the dispatcher forget every call.

        `forgotten` are the programs that have been let go. They, and the statics in
        them, must not die before the dispatcher is done: what is run when they do
        (`__del__`, callbacks of weak references, XLA's) would let other threads into
        its cache in the middle, and jaxlib 0.10 then crashes.
        """
        if self.dispatcher is not None:
            _compat.clear_dispatcher(self.dispatcher)
        forgotten.clear()


_ARRAYS_OR_STRUCTS = (*ARRAY_TYPES, jax.ShapeDtypeStruct)
_functions: weakref.WeakSet[JittedFunction] = weakref.WeakSet()
_functions_lock = threading.RLock()


def clear_all_programs() -> None:
    """Forget everything that was traced (`eqx.clear_caches()`)."""
    with _functions_lock:
        functions = list(_functions)
    for function in functions:
        function.clear()
    if (chosen := _state.get("nodes")) is not None:
        chosen.clear()


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


def reads_numpy(arrays: Sequence[Any]) -> bool:
    """Whether a computation may read memory that NumPy can write to.

    JAX does not always copy such an argument, so the caller must not get a chance to
    reuse the buffer before the device is done. (Scalars of NumPy cannot be written to,
    but to the dispatcher they are one with NumPy's arrays without dimensions.)
    """
    return any(isinstance(x, np.ndarray | np.generic) for x in arrays)


def wait(arrays: Sequence[Any]) -> None:
    """Wait for a computation: the results of one are ready together."""
    for array in arrays:
        if isinstance(array, jax.Array):  # and not `float0`, which is NumPy's
            array.block_until_ready()
            return
    jax.effects_barrier()


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
