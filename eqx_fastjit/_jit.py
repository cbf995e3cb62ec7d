"""`filter_jit`: the decorator, the callable it returns, and its bound methods."""

# Not all of JAX's functions have types, and callables may be anything. Functions beside
# a class may use its private attributes.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportPrivateUsage=false
# pyright: reportIncompatibleVariableOverride=false

import dataclasses
import functools as ft
import pkgutil
import sys
import types
from collections.abc import Callable, Iterable, Sequence
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
from equinox import tree_equal

from ._engine import Base, connect
from ._function import Function, function_for
from ._options import Donate, make_options
from ._stages import Lowered, StagedCall, Traced


_P = ParamSpec("_P")
_Q = ParamSpec("_Q")
_T = TypeVar("_T")
_S = TypeVar("_S")

MISSING: Any = object()
_set = object.__setattr__  # that of `JitWrapped` raises

if TYPE_CHECKING:
    from ._export import Exported


class _Jitted(Generic[_P, _T]):
    """What jitted functions and their bound methods have in common."""

    __slots__ = ()

    _function: Function

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
        call = StagedCall(self, args, kwargs)
        return Traced(call, call.traced)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Shapes and dtypes of the result, without running the function.

        **Arguments:** as for `lower`.

        **Returns:** the result, with a `jax.ShapeDtypeStruct` for each array.
        """
        return self.trace(*args, **kwargs).out_info

    def export(self, *args: Any, **kwargs: Any) -> "Exported":
        """Trace the function for these arguments, to save it to a file.

        This needs the package flatbuffers.

        **Arguments:** as for `lower`. Sizes may be symbolic, as in `jax.export`.
        The arrays of a method's instance are saved in the file.

        **Returns:** an `Exported`, whose `save(path)` writes a file for
        `eqx_fastjit.load`. Raises `ValueError`, with the key path, for a static
        argument that cannot be exported.
        """
        from ._export import Exported  # with `jax.export`, which few programs need

        return Exported(self, args, kwargs)

    def clear_cache(self) -> None:
        """Clear all traces and compiled programs of this function.

        Those of a method are cleared for all instances.
        """
        self._function.clear()

    def __eq__(self, other: object) -> Any:
        return tree_equal(self, other)

    def __hash__(self) -> int:
        leaves, treedef = jtu.tree_flatten(self)
        return hash((treedef, *leaves))


@jtu.register_pytree_with_keys_class
class JitWrapped(_Jitted[_P, _T], Base):
    """A function compiled by `filter_jit`, which is called like the function itself.

    It is a pytree. If the callable is a pytree, such as a Module, this is its only
    child. As a method, it binds to its instance, and the bound method is also a pytree.
    """

    __slots__ = ("__dict__", "__weakref__", "__wrapped__", "_bind", "_function")

    __wrapped__: Callable[_P, _T]
    # One value per parameter, of the arguments of a call.
    _bind: Callable[..., tuple[Any, ...]]

    def __init__(self, function: Function, fun: Any):
        _set(self, "_function", function)
        _set(self, "__wrapped__", fun)
        _set(self, "_bind", function.bound_to(fun))
        connect(self, function, self._bind)
        self.__dict__.update(function.attributes)

    if TYPE_CHECKING:

        def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T: ...

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

    # --- as a value ---

    def tree_flatten_with_keys(self) -> Any:
        function, fun = self._function, self.__wrapped__
        if function.fun is None:
            return [(jtu.GetAttrKey("fn"), fun)], (function, None)
        return [], (function, fun)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> "JitWrapped[..., Any]":
        function, fun = aux
        return cls(function, *children or (fun,))

    def __repr__(self) -> str:
        return repr(self._function)

    def __reduce__(self) -> Any:
        name = _global_name(self, sys._getframe(1))
        if name is not None:
            return pkgutil.resolve_name, (name,)
        donate, asynchronous, jit_kwargs = self._function.options
        options: dict[str, Any] = {"donate": donate, "asynchronous": asynchronous}
        return ft.partial(filter_jit, **options, **jit_kwargs), (self.__wrapped__,)

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _global_name(wrapped: Any, pickling: types.FrameType) -> str | None:
    """The name of a function that was decorated: the function inside has no other.

    `None` if it is pickled whole, for a process that lacks it. `cloudpickle` does so
    with what `__main__` defines, and says it to nobody: Ray, Dask and joblib each have
    a copy of it, and a module of that name.
    """
    fun = wrapped.__wrapped__
    is_copied = "cloudpickle" in pickling.f_globals.get("__name__", "")
    try:
        if is_copied and fun.__module__ == "__main__":
            return None
        name = f"{fun.__module__}:{fun.__qualname__}"
        found = pkgutil.resolve_name(name)
    except (AttributeError, ImportError, ValueError):
        return None
    return name if isinstance(found, JitWrapped) and found == wrapped else None


@jtu.register_pytree_with_keys_class
class BoundJit(ft.partial[_T], _Jitted[_P, _T], Generic[_P, _T]):
    """A jitted method, bound to its instance.

    It is a pytree with `func`, `args` and `keywords`, like `equinox.Partial`. But it is
    a `functools.partial`, which takes less time to create: each access of the method
    creates one.
    """

    if TYPE_CHECKING:

        @property
        def func(self) -> JitWrapped[..., _T]: ...

        def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T: ...

    @property
    def _function(self) -> Function:
        return self.func._function

    def _bind(self, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return self.func._bind(*self.args, *args, **{**self.keywords, **kwargs})

    def tree_flatten_with_keys(self) -> Any:
        names = ("func", "args", "keywords")
        return [(jtu.GetAttrKey(name), getattr(self, name)) for name in names], None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Any:
        func, args, keywords = children
        if callable(func) and type(args) is tuple and type(keywords) is dict:
            return BoundJit(func, *args, **keywords)
        # Placeholders, which some tree functions put in place of subtrees.
        return eqx.Partial(func, args, keywords)


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
    drop-in replacement for `equinox.filter_jit`. What to know: calls return before the
    device has finished, as with `jax.jit`. So do not write to a NumPy array after
    `jnp.asarray(array)`. Pass the array itself, or `array.copy()`.

    **Arguments:**

    - `fun`: any callable, such as a function, a Module with `__call__`, or the result
        of another transformation. If omitted, a decorator is returned.
    - `donate`: which arrays to donate. Their memory may be reused for the results, and
        they can no longer be used after the call. `"all"` donates all arrays,
        `"all-except-first"` all but those of the first positional argument, and
        `"none"` (the default) donates none. `"warn"` and `"warn-except-first"` are like
        the first two, but keep JAX's warning about donated arrays that could not be
        used.
    - `asynchronous`: whether calls return immediately. If `False`, each call on a CPU
        blocks until the device has finished, as with `equinox.filter_jit`. On a GPU or
        TPU it waits until its arguments have arrived.
    - `**jitkwargs`: passed to `jax.jit`: `inline`, `keep_unused`, `compiler_options`,
        `device`, `backend`, `out_shardings`, and `in_shardings`, a pytree prefix of the
        arguments as the user passes them.

    **Returns:**

    A `JitWrapped`, which is called like `fun`. Asynchronous calls only block in three
    cases: the function has host callbacks, such as `eqx.error_if`; more than 1 MiB of
    the arguments is in NumPy arrays, whose memory JAX may still be reading (on a GPU or
    TPU, the call only waits for their transfer); arguments or results are on several
    virtual CPU devices.

    **Raises:**

    `ValueError` for an unknown `donate`, and for arguments of `jax.jit` that
    `filter_jit` sets itself. `TypeError` for arguments that `jax.jit` does not have.
    Calls raise `RecursionError` for an argument that contains itself.

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
    function = function_for(fun, options)
    if function.fun is None:
        # This is the current value, as in Equinox. Otherwise, a Module that stores its
        # own jitted method would contain itself.
        leaves, treedef = jtu.tree_flatten(fun)
        fun = jtu.tree_unflatten(treedef, leaves)
    return JitWrapped(function, fun)


def jitted_function(f: Any) -> Function:
    """The function behind a jitted function or method, for `eqx_fastjit.insight`.

    Raises `TypeError` for anything that `filter_jit` did not return.
    """
    if not isinstance(f, _Jitted):
        raise TypeError(
            "expected a function wrapped by `eqx_fastjit.filter_jit`, got "
            f"{type(f).__module__}.{type(f).__qualname__}."
        )
    return f._function


def load(
    path: Any,
    *,
    example: Sequence[Any] | None = None,
    allow: str | Iterable[str] = (),
    trusted: bool = False,
) -> JitWrapped[..., Any]:
    """Load a function from a file that `Exported.save` wrote, without tracing it.

    **Arguments:**

    - `path`: the path of the file.
    - `example`: the positional arguments of a call, as a tuple. Their classes may be
        used without `allow`.
    - `allow`: names of modules and packages whose classes and functions may be imported
        if the result needs them. Modules and named tuples of JAX, Equinox and NumPy are
        allowed.
    - `trusted`: whether to run the file's native code, if it has any that matches this
        machine. Native code can do anything, so only trust files that were written by
        you, or by somebody you trust. Otherwise, the portable form is compiled.

    **Returns:**

    A callable with the signature of the function, for calls like the one that was
    exported. Other shapes, dtypes, static arguments or structures raise a `TypeError`
    that names the leaf.

    **Raises:**

    `ValueError` if the file was not written by `save`, is damaged, or needs something
    that is not available. Warns if native code was requested, but does not match this
    machine.

    !!! example

        ```python
        eqx_fastjit.filter_jit(model).export(x).save("model.fastjit")
        # In another process, without the source of the model:
        predict = eqx_fastjit.load("model.fastjit")
        predict(x)
        ```
    """
    from ._export import load_function

    function = load_function(path, example, allow, trusted)
    return JitWrapped(function, function)


# Another name, for programs that import both this and Equinox's.
fast_filter_jit = filter_jit
