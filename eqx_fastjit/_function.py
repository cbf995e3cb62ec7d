"""A user's function under one set of options, and its specializations.

A *specialization* is kept for each distinct signature of a call (`_statics.py`): a
public `jax.jit` of a function of the call's arrays alone (`_traced.py`), everything
else being fixed. The engine binds and reads a call, looks up its specialization and
calls that; what it does on a cache miss, after a compilation and on an error is here.
"""

import types
import weakref
from collections.abc import Sequence
from inspect import Parameter
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np

from . import _callables, _facts
from ._blocking import ARGUMENTS, block, decide, RESULTS, UNDECIDED, WAITS
from ._engine import ENGINE, forget_readers
from ._errors import clearer, name_static
from ._options import arguments_of_jit, Options
from ._private import on_clear_caches, Tracer, values_inside
from ._statics import is_array, partition, Structure, Walk
from ._traced import calls_back, FlatFunction


# The most specializations for one function. If there are more, all are dropped.
_MAX_SPECIALIZATIONS = 4096
# The most that is remembered for one class of callables.
_MAX_WRAPPED = 1024


class Function:
    """One user callable under one set of options."""

    def __init__(self, fun: Any, description: _callables.Description, options: Options):
        self.signature = description.signature
        self.options = options
        self.attributes = _callables.copied_attributes(fun)

        # A weak reference, as this lives as long as that; `None` of one that has arrays
        # or statics of its own. That is passed along with the arguments, after the
        # first positional one (or all of `*args`), where Equinox has it: of several
        # arrays that could be reused for a result, JAX takes the first donated one.
        self.fun = weakref.ref(fun) if description.plain else None
        kinds = [p.kind for p in self.signature.parameters.values()]
        has_first = any(kind <= Parameter.VAR_POSITIONAL for kind in kinds)
        self.fun_index = -1 if description.plain else int(has_first)

        # So many arguments by position are the values of a call: there C need not bind.
        by_position = all(kind <= Parameter.POSITIONAL_OR_KEYWORD for kind in kinds)
        self.n_positional = len(kinds) if by_position and description.plain else -1

        name, qualname = description.names
        column = _callables.column_of(fun)
        variant = f"{options.donate} {column} {' '.join(options.jit_kwargs)}"
        number = next(_facts.function_numbers)
        self.info = _facts.FunctionInfo(
            name, qualname, description.place, number, variant
        )

        # From the callable to a function that binds a call.
        self.bound_to = _callables.binder_of(self.signature, qualname, self.fun_index)

        # Each specialization is its own key.
        self.table: dict[Any, Any] = {}
        # The one that was found last, if any, where C looks first.
        self.last = types.CellType()
        _functions[id(self)] = self

    def __repr__(self) -> str:  # JAX's errors about treedefs show it
        return f"filter_jit(fn={self.info.qualname!r}, donate={self.options.donate!r})"

    # --- the user's function ---

    def call_python(self, values: tuple[Any, ...]) -> Any:
        """Call the user's function itself, on bound values."""
        __tracebackhide__ = True
        fun, values = self.fun_and_values(values)
        args, kwargs = _callables.to_call(self.signature, values)
        return fun(*args, **kwargs)

    def fun_and_values(self, values: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """The user's function, and one value per parameter."""
        if self.fun is not None:
            return self.fun(), values
        i = self.fun_index
        return values[i], values[:i] + values[i + 1 :]

    def arguments_of(self, values: tuple[Any, ...]) -> list[tuple[str, Any]]:
        """Each argument, and the callable if it is passed along, with its name."""
        slots = [(p.name, p.kind) for p in self.signature.parameters.values()]
        if self.fun is None:
            slots.insert(self.fun_index, (self.info.name, Parameter.POSITIONAL_ONLY))

        out: list[tuple[str, Any]] = []
        for (name, kind), value in zip(slots, values, strict=True):
            if kind is Parameter.VAR_POSITIONAL:
                out += [(f"{name}[{i}]", x) for i, x in enumerate(value)]
            elif kind is Parameter.VAR_KEYWORD:
                out += sorted(value.items())  # in JAX's order of dictionaries
            else:
                out.append((name, value))
        return out

    # --- what the engine calls ---

    def specialize(
        self, values: tuple[Any, ...], abstract: bool = False
    ) -> tuple[Any, Sequence[Any]]:
        """A new specialization for a call, and the arrays of the call.

        It is kept for calls like this one, if it is certain which calls these are.
        Unless `abstract`, a `jax.ShapeDtypeStruct` is a static like any other.
        """
        made, found = ENGINE.read(values, abstract)
        arrays, structure = partition(values, abstract)
        if [*map(id, arrays)] != [*map(id, found)]:
            # A class was registered since it was first read.
            forget_readers()
            made, _ = ENGINE.read(values, abstract)
            arrays, structure = partition(values, abstract)

        # What it calls.
        named = self.arguments_of(values)
        fun, passed = self.fun_and_values(values)
        args, _ = _callables.to_call(self.signature, passed)
        kwargs = arguments_of_jit(self.options, fun, args, named, len(arrays), abstract)
        paths = _paths(named, len(arrays), abstract)
        made.flat = FlatFunction(self, structure, paths, _callables.source_of(fun))
        made.jitted = self.jit(made.flat, kwargs)

        # Where it is found.
        if made.static_numpy:
            _drop_changed_arrays(made, values)
        if _is_certain(made, structure, values, abstract):
            made.flat.kept = True
            if len(self.table) >= _MAX_SPECIALIZATIONS:
                self.clear()
            # An equal one that is stale: a dictionary would keep it as the key.
            self.table.pop(made, None)
            self.table[made] = made
        return made, arrays

    def forget(self, specialization: Any) -> None:
        """Drop a specialization, if it is in the table."""
        if self.table.get(specialization) is specialization:
            self.table.pop(specialization, None)
        del self.last.cell_contents  # only now: another thread may set it meanwhile

    def clear(self) -> None:
        """Drop all specializations."""
        self.table.clear()
        del self.last.cell_contents

    def jit(self, flat: FlatFunction, kwargs: dict[str, Any]) -> Any:
        """What a new specialization calls. (One in a file has something else.)"""
        return jax.jit(flat, **kwargs)

    def complete_call(
        self,
        specialization: Any,
        plan: Any,
        arrays: Sequence[Any],
        results: Sequence[Any],
        is_new: bool,
        reads_numpy: bool,
    ) -> None:
        """A call has returned. Waits for what it must wait for.

        `is_new` says that something was traced or compiled: this completes the event,
        and decides what such calls wait for. The C engine skips this if nothing was,
        and the call waits for nothing.
        """
        if plan.blocks & UNDECIDED:
            is_new = True
        if is_new:
            if not any(isinstance(values_inside(x)[0], Tracer) for x in arrays):
                # As a part of another trace a call never waits, and it is left open.
                decide(
                    plan,
                    lambda: calls_back(specialization, arrays),
                    self.options.asynchronous,
                    [*arrays, *results],
                )
            # Another thread may have written to a static after it was read: then this
            # was traced for another value.
            if specialization.is_stale():
                self.forget(specialization)
            # At last: an interrupt before was one of the compilation (`error_of_call`).
            _facts.close(arrays)

        waits = plan.blocks & WAITS
        if reads_numpy or (is_new and waits & ARGUMENTS):
            waits |= RESULTS
        block(results, arrays, waits)

    def error_of_call(
        self, specialization: Any, error: BaseException, values: tuple[Any, ...]
    ) -> BaseException:
        """A call has raised. Returns what is raised in place of that.

        JAX does not survive an interrupt at any point of a trace or compilation: every
        later call may then fail with "RecursionError: Recursively calling", though
        nothing is recursive. So the next call begins anew. (Other exceptions only if
        they came out of the trace. What a compiled program raises, or an interrupt
        while a call blocks, is no reason to compile it again.)
        """
        __tracebackhide__ = True
        if specialization is not None:
            compiling = _facts.close()
            interrupted = compiling and not isinstance(error, Exception)
            is_traced = specialization.flat.traced
            if interrupted or isinstance(error, RecursionError) or not is_traced:
                self.forget(specialization)
        else:
            name_static(error, lambda: self.arguments_of(values))
        return clearer(error, lambda: self.arguments_of(values))

    # --- specializations ---

    def specialization_for(
        self, values: tuple[Any, ...]
    ) -> tuple[Any, Any, Sequence[Any]]:
        """The signature of bound values, their specialization, and their arrays.

        The specialization is made if there is none. A `jax.ShapeDtypeStruct` may stand
        for an array.
        """
        __tracebackhide__ = True
        try:
            signature, arrays = ENGINE.read(values, True)
            found = self.table.get(signature)
            if found is None or found.is_stale():
                found, arrays = self.specialize(values, abstract=True)
                signature = found  # types may have other readers now
        except Exception as e:
            raise self.error_of_call(None, e, values)  # noqa: B904
        return signature, found, arrays


def _is_certain(
    made: Any, structure: Structure, values: tuple[Any, ...], abstract: bool
) -> bool:
    """Whether it is certain for which calls a specialization is.

    Another thread may have written to a list between the engine's reading and JAX's,
    and may write back what was there. So both read again, in the same order.
    """
    try:
        again, _ = ENGINE.read(values, abstract)
        _, now = partition(values, abstract)
        return again == made and now.is_same(structure)
    except Exception:  # of the user's `__eq__`, say, of which the call has no need
        return False


def _paths(named: list[tuple[str, Any]], n_arrays: int, abstract: bool) -> list[str]:
    """The path of each array of a call, for JAX's messages."""
    try:
        paths = [
            f"{name}{jtu.keystr(path)}"
            for name, value in named
            for path, leaf in jtu.tree_leaves_with_path(value)
            if is_array(leaf, abstract)
        ]
    except Exception:  # a user's class whose flatten function with keys is wrong
        paths = []

    if len(set(paths)) != n_arrays:  # or of `f(x, /, **kwargs)` with `x=...`
        paths = [f"array{i}" for i in range(n_arrays)]
    return paths


# What was made with static arrays of NumPy, by the `id` of such an array and its own
# (for it may be equal to another).
_with_numpy: weakref.WeakValueDictionary[tuple[int, int], Any] = (
    weakref.WeakValueDictionary()
)


def _drop_changed_arrays(made: Any, values: tuple[Any, ...]) -> None:
    """Drop what was made with a static array of NumPy that was changed since.

    JAX converts an array of 64 bits when it is traced, and finds the copy again by the
    array's identity for as long as any trace has it: a new one would get old values. So
    only the arrays of the new one are asked for: to read an array takes a while.
    """
    statics = Walk(values).mutables
    arrays = {id(x) for x in statics if isinstance(x, np.ndarray)}

    for reference in _with_numpy.valuerefs():
        array, _ = reference.key
        specialization = reference() if array in arrays else None
        if specialization is None or not specialization.is_stale():
            continue
        function = specialization.flat.function()
        if function is not None:
            function.forget(specialization)

    _with_numpy.update({(array, id(made)): made for array in arrays})


# All of them, by their `id`. (No `WeakSet`: other threads may add to it meanwhile, and
# its iterator would raise.)
_functions: weakref.WeakValueDictionary[int, Function] = weakref.WeakValueDictionary()


def clear_all() -> None:
    """Drop all traces of all functions, for `eqx.clear_caches()`."""
    for reference in _functions.valuerefs():
        function = reference()
        if function is not None:
            function.clear()


on_clear_caches(clear_all)


def function_for(fun: Any, options: Options) -> Function:
    """The `Function` of a callable: the same one each time that it is wrapped."""
    description = _callables.describe(fun)
    known = _callables.created_for(fun, description.plain)
    signature, _ = ENGINE.read((options,), False)
    key = description.key, signature

    found = known.get(key)
    if found is None:
        if len(known) >= _MAX_WRAPPED:  # a program may make up names
            known.clear()
        # There is no lock, so another thread may get here, too. The first one wins.
        found = known.setdefault(key, Function(fun, description, options))
    return found
