"""`filter_jit`: the decorator, the callable it returns, and its bound methods."""

# Not all of JAX's functions have types, and callables may be anything. Functions beside
# a class may use its private attributes.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false

import dataclasses
import functools as ft
import itertools
import sys
import types
import weakref
from collections.abc import Callable
from typing import (
    Any,
    Concatenate,
    Generic,
    overload,
    ParamSpec,
    TYPE_CHECKING,
    TypeVar,
)

import equinox as eqx
import jax.tree_util as jtu

from ._base import Base, call_directly, PythonCall
from ._binding import Binding, make_binder
from ._callables import describe, function_for
from ._compat import hide_from_tracebacks
from ._function import Function
from ._options import Donate, make_options
from ._partition import ANY_ARRAY, DYNAMIC, partition, Structure, walk
from ._stages import Lowered, trace, Traced
from ._static_keys import COMPARED_AS_NODES, static_key


if TYPE_CHECKING:
    from ._export._exported import Exported

hide_from_tracebacks(__file__)

_P = ParamSpec("_P")
_Q = ParamSpec("_Q")
_T = TypeVar("_T")
_S = TypeVar("_S")

MISSING: Any = object()
_set = object.__setattr__  # that of `JitWrapped` raises


class _WrapperAux:
    """A `JitWrapped` without its arrays."""

    __slots__ = ("donate", "fun", "function", "key", "structure")

    def __init__(
        self, function: Function, donate: str, fun: Any, structure: Structure | None
    ):
        self.function = function
        self.donate = donate
        # `structure` is the callable without its arrays, if it is a pytree. Otherwise
        # `fun` is the callable.
        self.fun = fun if structure is None else None
        self.structure = structure
        options = static_key(function.options)
        trail = static_key(fun) if structure is None else tuple(walk(fun).trail)
        self.key = options, donate, function.spec, structure is None, trail

    def __eq__(self, other: object) -> bool:
        return type(other) is _WrapperAux and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:  # JAX's errors about treedefs show it
        shown = f"fn={self.function.qualname!r}, donate={self.donate!r}"
        if not self.function.options.asynchronous:
            shown += ", asynchronous=False"
        return shown if self.structure is None else f"{shown}, {self.structure}"


class JitWrapped(Base, Generic[_P, _T]):
    """A function compiled by `filter_jit`, which is called like the function itself.

    It is a pytree, whose leaves are the arrays of the callable (if it is a Module, for
    example). As a method, it binds to its instance, and the bound method is also a
    pytree.
    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_binding",
        "_donate",
        "_flat",
        "_fun",
        "_function",
    )

    _fun: Callable[_P, _T]
    _function: Function
    _donate: str
    _binding: Binding
    # The child and the rest, if this is a pytree that was created by unflattening. The
    # child may then hold anything (`None`, after `eqx.partition`), and cannot be
    # recovered from `_fun`.
    _flat: tuple[Any, Structure] | None

    if TYPE_CHECKING:

        def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T: ...

    @property
    def __wrapped__(self) -> Callable[_P, _T]:
        return self._fun

    @overload
    def __get__(self, instance: None, owner: Any = None) -> "JitWrapped[_P, _T]": ...

    @overload
    def __get__(
        self: "JitWrapped[Concatenate[_S, _Q], _T]", instance: _S, owner: Any = None
    ) -> "BoundJit[_Q, _T]": ...

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        return BoundJit(self, instance)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered[_P, _T]:
        """Trace and lower the function for these arguments, without running it.

        **Arguments:** those of the function. A `jax.ShapeDtypeStruct` may be passed in
        place of an array.

        **Returns:** a `Lowered`, whose `compile()` gives a `Compiled`.
        """
        return self.trace(*args, **kwargs).lower()

    def trace(self, *args: Any, **kwargs: Any) -> Traced[_P, _T]:
        """Trace the function for these arguments, without lowering or running it.

        **Arguments:** as for `lower`.

        **Returns:** a `Traced`, with the `jaxpr` and `lower()`.
        """
        return trace(self._function, self._bind, args, kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Shapes and dtypes of the result, without running the function.

        **Arguments:** as for `lower`.

        **Returns:** the result, with a `jax.ShapeDtypeStruct` for each array.
        """
        return self.trace(*args, **kwargs).out_info

    def export(self, *args: Any, **kwargs: Any) -> "Exported":
        """Trace the function for these arguments, to save it to a file.

        **Arguments:** as for `lower`. Sizes may be symbolic, as in `jax.export`.

        **Returns:** an `Exported`, whose `save(path)` writes a file for
        `eqx_fastjit.load`. Raises `ValueError`, with the path, for a static that cannot
        be exported.
        """
        from ._export._exported import Exported

        return Exported(self, (), args, kwargs)

    def clear_cache(self) -> None:
        """Clear all traces and compiled programs of this function."""
        self._function.clear()

    def _bind(self, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """One value per parameter, and the callable itself if it is passed along."""
        __tracebackhide__ = True
        self._renew_binding()
        function = self._function
        names = function.name, function.qualname
        values = make_binder(self._binding, names)(*args, **kwargs)
        if function.with_fun:
            i = function.spec.fun_index()
            values = (*values[:i], self._fun, *values[i:])
        return values

    def _renew_binding(self) -> None:
        """Make another `Binding` if the function's defaults have changed."""
        if not self._binding.is_current():
            _set(self, "_binding", Binding(self._fun, self._function.spec))
            self._prepare_call()

    def _prepare_call(self) -> None:
        """Set up `__call__` to bind its arguments and call the function."""
        function, binding = self._function, self._binding
        if function.table is None:
            self._prepare(PythonCall(weakref.ref(self)))
            return
        spec = binding.spec
        self._prepare(
            None,
            function=function,
            table=function.table,
            fun=self._fun,
            fun_index=spec.fun_index() if function.with_fun else -1,
            binder=make_binder(binding, (function.name, function.qualname)),
            source=binding.source,
            **binding.for_native,
        )

    # --- as a value ---

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, JitWrapped):
            return NotImplemented
        return eqx.tree_equal(self, other)

    def __hash__(self) -> int:
        children, aux = _flatten_wrapped(self)
        return hash((aux, *children))

    def __repr__(self) -> str:
        return f"filter_jit(fn={self._function.qualname!r}, donate={self._donate!r})"

    def __copy__(self) -> Any:
        # Nobody can write to it; and after `eqx.partition` it could not be made again.
        return self

    def __reduce__(self) -> Any:
        if self._function.loaded:
            # By a name that nobody finds: a copy is the same, and pickling is refused.
            return self._fun.__qualname__
        found = _global_of(self._fun)
        if _is_alike(self, found) and not (
            self._fun.__module__ == "__main__" and _is_copied(sys._getframe(1))
        ):
            # Under its own name, like any function: after `@filter_jit`, the function
            # inside has no other name.
            return self._fun.__qualname__ if found is self else (_itself, (found,))
        options = self._function.options
        extra = {"asynchronous": options.asynchronous, **options.kwargs()}
        return _unpickle, (self._fun, self._donate, extra)

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


call_directly(JitWrapped)


def _global_of(fun: Any) -> Any:
    """The object at the place where `fun` says that it was defined."""
    found = sys.modules.get(getattr(fun, "__module__", None) or "")
    # (What Equinox has in place of those that a Module lacks is false.)
    for name in (getattr(fun, "__qualname__", None) or "").split("."):
        found = getattr(found, name, None)
    return found


def _itself(wrapped: Any) -> Any:
    """Unpickles to the global function that the pickled one was built from."""
    return wrapped


def _is_alike(wrapped: Any, found: Any) -> bool:
    """Whether one is the other, or was built from it, in a model after a step, say."""
    if type(found) is not JitWrapped:
        return False
    names = "_fun", "_function", "_donate"
    return all(getattr(wrapped, x) is getattr(found, x) for x in names)


def _is_copied(pickling: types.FrameType) -> bool:
    """Whether what `__main__` defines is pickled whole, for a process that lacks it.

    `cloudpickle` does so for functions, and says it to nobody: Ray, Dask and joblib
    each have a copy of it, and a pickler of that name.
    """
    pickler = type(pickling.f_locals.get("self"))
    return "cloudpickle" in pickler.__module__


def _unpickle(fun: Any, donate: Any, extra: dict[str, Any]) -> Any:
    return filter_jit(fun, donate=donate, **extra)


def _make_wrapped(
    function: Function,
    donate: str,
    binding: Binding,
    fun: Any,
    shown: dict[str, Any],
    flat: tuple[Any, Structure] | None = None,
) -> JitWrapped[..., Any]:
    wrapped: JitWrapped[..., Any] = JitWrapped.__new__(JitWrapped)
    _set(wrapped, "_function", function)
    _set(wrapped, "_donate", donate)
    _set(wrapped, "_binding", binding)
    _set(wrapped, "_fun", fun)
    _set(wrapped, "_flat", flat)
    wrapped._prepare_call()
    wrapped.__dict__.update(shown)
    return wrapped


# As in Equinox, a wrapper has the leaves of its callable in one child, a tuple of this
# name, with `None` in place of all that is static.
_LEAVES = jtu.GetAttrKey("_dynamic_fun")


def _flatten_wrapped(wrapped: Any) -> tuple[tuple[Any, ...], _WrapperAux]:
    function, fun = wrapped._function, wrapped._fun
    children, structure = (), None
    if wrapped._flat is not None:
        # The child is the same, but a static may have been changed.
        child, structure = wrapped._flat
        children = (child,)
        fun = structure.rebuild([ANY_ARRAY] * structure.leaves.count(DYNAMIC))
    elif function.with_fun:
        arrays, structure = partition(fun)
        rest = iter(arrays)
        leaves = [next(rest) if x is DYNAMIC else None for x in structure.leaves]
        children = (tuple(leaves),)
    return children, _WrapperAux(function, wrapped._donate, fun, structure)


def _flatten_wrapped_with_keys(wrapped: Any) -> tuple[tuple[Any, ...], _WrapperAux]:
    children, aux = _flatten_wrapped(wrapped)
    return tuple([(_LEAVES, child) for child in children]), aux


def _unflatten_wrapped(aux: _WrapperAux, children: Any) -> JitWrapped[..., Any]:
    fun, flat, structure = aux.fun, None, aux.structure
    if structure is not None:
        (child,) = children
        flat = child, structure
        leaves = structure.leaves
        if type(child) is not tuple or len(child) != len(leaves):
            # A placeholder, which some tree functions put in place of subtrees.
            child = [child] * len(leaves)
        are_arrays = [x is DYNAMIC for x in leaves]
        fun = structure.rebuild([*itertools.compress(child, are_arrays)])
    described = describe(fun)
    return _make_wrapped(
        aux.function, aux.donate, described.binding, fun, described.shown, flat
    )


jtu.register_pytree_with_keys(
    JitWrapped, _flatten_wrapped_with_keys, _unflatten_wrapped, _flatten_wrapped
)


class BoundJit(ft.partial[_T], Generic[_P, _T]):
    """A jitted method, bound to its instance.

    It is a pytree with `func`, `args` and `keywords`, like `equinox.Partial`. It is a
    `functools.partial`, because each access of the method creates one, and creating an
    `equinox.Partial` takes 8 us.
    """

    if TYPE_CHECKING:

        @property
        def func(self) -> JitWrapped[..., _T]: ...

        def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T: ...

    def lower(self, *args: Any, **kwargs: Any) -> Lowered[_P, _T]:
        """As `JitWrapped.lower`, for the method of this instance."""
        return self.trace(*args, **kwargs).lower()

    def trace(self, *args: Any, **kwargs: Any) -> Traced[_P, _T]:
        """As `JitWrapped.trace`, for the method of this instance."""
        return trace(self.func._function, self._bind, args, kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As `JitWrapped.eval_shape`, for the method of this instance."""
        return self.trace(*args, **kwargs).out_info

    def export(self, *args: Any, **kwargs: Any) -> "Exported":
        """As `JitWrapped.export`. The arrays of the instance are saved in the file."""
        from ._export._exported import Exported

        return Exported(self.func, self.args, args, {**self.keywords, **kwargs})

    def clear_cache(self) -> None:
        """Clear all traces and compiled programs of this method, for all instances."""
        self.func.clear_cache()

    def _bind(self, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return self.func._bind(*self.args, *args, **{**self.keywords, **kwargs})

    if sys.version_info >= (3, 13):

        def __get__(self, instance: Any, owner: Any = None) -> "BoundJit[_P, _T]":
            # As an attribute of a class: a `functools.partial` is then bound to the
            # instance like a function (3.13 warns of it), an `equinox.Partial` is not.
            return self

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, BoundJit):
            return NotImplemented
        return eqx.tree_equal(self, other)

    def __hash__(self) -> int:
        return hash((self.func, self.args))


def _flatten_bound(bound: Any) -> tuple[tuple[Any, ...], None]:
    return (bound.func, bound.args, bound.keywords), None


def _flatten_bound_with_keys(bound: Any) -> tuple[tuple[Any, ...], None]:
    names = ("func", "args", "keywords")
    return tuple([(jtu.GetAttrKey(n), getattr(bound, n)) for n in names]), None


def _unflatten_bound(_: None, children: Any) -> Any:
    func, args, keywords = children
    if callable(func) and type(args) is tuple and type(keywords) is dict:
        return BoundJit(func, *args, **keywords)
    # Placeholders, which some tree functions put in place of subtrees.
    return eqx.Partial(func, args, keywords)


jtu.register_pytree_with_keys(
    BoundJit, _flatten_bound_with_keys, _unflatten_bound, _flatten_bound
)
COMPARED_AS_NODES.extend((JitWrapped, BoundJit))


@overload
def filter_jit(
    *, donate: Donate = "none", asynchronous: bool = True, **jitkwargs: Any
) -> Callable[[Callable[_P, _T]], JitWrapped[_P, _T]]: ...


@overload
def filter_jit(
    fun: Callable[_P, _T],
    *,
    donate: Donate = "none",
    asynchronous: bool = True,
    **jitkwargs: Any,
) -> JitWrapped[_P, _T]: ...


def filter_jit(
    fun: Any = MISSING,
    *,
    donate: Donate = "none",
    asynchronous: bool = True,
    **jitkwargs: Any,
) -> Any:
    """Compile a function whose arguments may be any pytrees.

    All JAX and NumPy arrays in the arguments, and in `fun` itself, are traced.
    Everything else is static, and each new value triggers recompilation. This is a
    drop-in replacement for `equinox.filter_jit`, except that calls return immediately,
    as with `jax.jit`. So do not write to a buffer that was handed to JAX: pass the
    NumPy array itself, or `buf.copy()`.

    **Arguments:**

    - `fun`: any callable, such as a function, a Module with `__call__`, or the result
        of another transformation. If omitted, a decorator is returned.
    - `donate`: which arrays to donate. Their memory may be reused for the results, and
        they can no longer be used after the call. `"all"` donates all arrays,
        `"all-except-first"` all but those of the first positional argument, and
        `"none"` (the default) donates none. `"warn"` and `"warn-except-first"` are like
        the first two, but keep JAX's warning about donated arrays that could not be
        used.
    - `asynchronous`: whether calls return before the device has finished, as with
        `jax.jit` (the default). With `False`, every call blocks, as with Equinox.
    - `**jitkwargs`: passed to `jax.jit`: `inline`, `keep_unused`, `compiler_options`,
        `device`, `backend`, `out_shardings`, and `in_shardings`, a pytree prefix of the
        arguments as the user passes them.

    **Returns:**

    A `JitWrapped`, which is called like `fun`. Calls that are `asynchronous` only block
    if the function has host callbacks (`eqx.error_if`, `jax.pure_callback`); if more
    than 1 MiB of the arguments is in NumPy arrays, whose memory JAX may still be
    reading; or if arguments are sharded over several virtual CPU devices.

    Raises `ValueError` for an unknown `donate`, and for arguments of `jax.jit` that
    `filter_jit` sets itself. Raises `TypeError` if `asynchronous` is not a bool, and
    for arguments that `jax.jit` does not have. Calls raise `TypeError` for static
    arguments that cannot be hashed.

    !!! example

        ```python
        @eqx_fastjit.filter_jit
        def loss(model, x, y):  # a Module and two arrays
            return jnp.mean((jax.vmap(model)(x) - y) ** 2)
        ```
    """
    if fun is MISSING:
        return ft.partial(
            filter_jit, donate=donate, asynchronous=asynchronous, **jitkwargs
        )
    options = make_options(donate, asynchronous, jitkwargs)
    described = describe(fun)
    if not described.plain:
        # This is the current value, as in Equinox. Otherwise, a Module that stores its
        # own jitted method would contain itself.
        leaves, treedef = jtu.tree_flatten(fun)
        fun = jtu.tree_unflatten(treedef, leaves)
    function = function_for(fun, described, options)
    return _make_wrapped(function, donate, described.binding, fun, described.shown)


def jitted_function(f: Any) -> Function:
    """The function behind a jitted function or method, for `eqx_fastjit.insight`.

    Raises `TypeError` for anything that `filter_jit` did not return.
    """
    if isinstance(f, BoundJit):
        f = f.func
    if not isinstance(f, JitWrapped):
        raise TypeError(
            "expected a function wrapped by `eqx_fastjit.filter_jit`, got "
            f"{type(f).__module__}.{type(f).__qualname__}."
        )
    return f._function


# Another name, for programs that import both this and Equinox's.
fast_filter_jit = filter_jit
