"""Describes a callable that is wrapped, and finds or creates its `Function`."""

import contextlib
import functools as ft
import sys
import types
import weakref
from collections.abc import MutableMapping
from typing import Any, NamedTuple

import equinox as eqx

from ._function import Function
from ._options import Options
from ._parameters import Parameters
from ._private import instance_dict, missing_field, on_clear_caches
from ._reference import static_key
from ._statics import flatten_one_level


# Functions and classes remembered, for when they are wrapped again.
_MAX_REMEMBERED = 1024

# What wrapping gives a Module (`eqx.module_update_wrapper`).
_WRAPPER_NAMES = (
    "__module__",
    "__name__",
    "__qualname__",
    "__doc__",
    "__annotations__",
)


class Description(NamedTuple):
    """What wrapping needs to know about a callable."""

    # Whether it is not a pytree, and is only equal to itself.
    plain: bool
    # Its name and qualified name, as Equinox and JAX's logs show them.
    names: tuple[str, str]
    parameters: Parameters
    # The attributes that the jitted function copies.
    shown: dict[str, Any]
    # What the description of a function, or of a class, depends on.
    source: tuple[Any, ...]


# Describing a function takes 60 us, mostly in `inspect.signature`. A loop that calls
# `filter_jit(model)(x)` should not pay this each time.
_described: weakref.WeakKeyDictionary[Any, Description] = weakref.WeakKeyDictionary()
on_clear_caches(_described.clear)


def describe(fun: Any) -> Description:
    """The description of a callable, which is cached for functions and Modules."""
    owner = _owner(fun)
    source = () if owner is None else _source(owner)
    known = None if owner is None else _described.get(owner)
    if known is not None and all(map(_is, known.source, source)):
        return known
    out = Description(_is_plain(fun), _names(fun), Parameters(fun), _shown(fun), source)
    if owner is not None and (
        owner is fun or not any(map(_differs_by_instance, owner.__mro__))
    ):
        _make_room(_described)
        _described[owner] = out
    return out


def _owner(fun: Any) -> Any:
    """What a description can be kept for: a function, or the class of a Module."""
    cls = type(fun)
    if cls is types.FunctionType:
        # Without attributes, which may claim that it is like another callable.
        return None if fun.__dict__ else fun
    call = getattr(cls, "__call__", None)  # noqa: B004
    if type(call) is not types.FunctionType or not isinstance(fun, eqx.Module):
        return None
    return cls if instance_dict(fun).keys().isdisjoint(_WRAPPER_NAMES) else None


# If a class defines one of these, its instances may have different descriptions. (Not
# by `hasattr`: Equinox's metaclass has a `__signature__`, that of the constructor.)
_OF_INSTANCES = {"__wrapped__", "__signature__", "__getattr__"}


def _differs_by_instance(cls: type) -> bool:
    """Whether a class defines one of these, or a property as a name or a docstring."""
    values = vars(cls)
    shown = [values.get(name) for name in _WRAPPER_NAMES]
    return bool(values.keys() & _OF_INSTANCES) or any(
        hasattr(type(x), "__get__") for x in shown
    )


def _source(owner: Any) -> tuple[Any, ...]:
    """The objects that say what a function, or the `__call__` of a class, is."""
    fun = owner if type(owner) is types.FunctionType else owner.__call__
    return (
        fun.__code__,
        fun.__defaults__,
        fun.__kwdefaults__,
        owner.__name__,
        owner.__qualname__,
        owner.__doc__,
    )


def _is(x: Any, y: Any) -> bool:
    return x is y


def _is_plain(fun: Any) -> bool:
    if type(fun) is types.FunctionType:
        return True
    if type(fun).__eq__ is not object.__eq__ or flatten_one_level(fun) is not None:
        return False
    try:
        weakref.ref(fun)
    except TypeError:
        return False
    return True


def _names(fun: Any) -> tuple[str, str]:
    innermost: Any = fun
    for _ in range(sys.getrecursionlimit()):
        if hasattr(innermost, "__wrapped__"):
            innermost = innermost.__wrapped__
        elif isinstance(innermost, ft.partial):
            innermost = innermost.func
        else:
            break
    else:
        raise ValueError(f"`filter_jit` of {fun!r}: its `__wrapped__` never ends.")
    # A Module that Equinox has built again may have something else as its `__name__`.
    has_name = isinstance(getattr(innermost, "__name__", None), str)
    named = innermost if has_name else type(innermost)
    qualname = getattr(named, "__qualname__", None)
    return named.__name__, qualname if isinstance(qualname, str) else named.__name__


_MISSING = missing_field()


def _shown(fun: Any) -> dict[str, Any]:
    shown = {}
    for name in _WRAPPER_NAMES:
        with contextlib.suppress(AttributeError):
            value = getattr(fun, name)
            shown[name] = getattr(type(fun), name) if value is _MISSING else value
    return shown


# From a function, or the class of any other callable, to what was created for it. The
# values only refer to functions weakly, so entries die with their function. (One that
# is referred to by its own compiled functions, or by a default of its own, lives as
# long.)
_functions: weakref.WeakKeyDictionary[Any, dict[Any, Function]] = (
    weakref.WeakKeyDictionary()
)


def _make_room(known: MutableMapping[Any, Any]) -> None:
    """Drop the oldest. Those that are still wrapped somewhere stay alive."""
    while len(known) >= _MAX_REMEMBERED:
        # Another thread may clear it in between.
        with contextlib.suppress(RuntimeError):
            oldest = next(iter(known), None)
            if oldest is None:
                return  # all are gone, though the collector may not have said so yet
            known.pop(oldest, None)


def function_for(fun: Any, description: Description, options: Options) -> Function:
    """The `Function` of a callable: the same one each time that it is wrapped."""
    plain, names, parameters = description[:3]
    owner = fun if plain else type(fun)
    # Most have no more options than these two, whose key is quick.
    donate, asynchronous, *more = options
    rest = static_key(more) if any(x is not None and x != () for x in more) else None
    key = plain, names, parameters.key(), donate, asynchronous, rest
    function = _functions.get(owner, {}).get(key)
    if function is not None:
        return function
    function = Function(fun, parameters, options, names, with_fun=not plain)
    _make_room(_functions)
    known = _functions.setdefault(owner, {})
    _make_room(known)  # programs may make up names, of which each is another
    # There is no lock, so another thread may get here, too. The first one wins.
    return known.setdefault(key, function)
