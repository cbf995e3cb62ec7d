"""Describes a callable that is wrapped, and finds or creates its `Function`."""

import functools
import inspect
import types
import weakref
from typing import Any, NamedTuple

from ._function import Function, weak_source
from ._options import Options
from ._parameters import Parameters, parameters_of
from ._place import place_of
from ._reference import static_key
from ._statics import flatten_one_level


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


def describe(fun: Any) -> Description:
    """The description of a callable."""
    return Description(_is_plain(fun), _names(fun), parameters_of(fun), _shown(fun))


def _is_plain(fun: Any) -> bool:
    if type(fun) is types.FunctionType:
        return True
    if type(fun).__eq__ is not object.__eq__ or flatten_one_level(fun) is not None:
        return False
    return bool(type(fun).__weakrefoffset__)


def _names(fun: Any) -> tuple[str, str]:
    innermost: Any = inspect.unwrap(fun)
    while isinstance(innermost, functools.partial):
        innermost = inspect.unwrap(innermost.func)
    # A Module that Equinox has built again may have something else as its `__name__`.
    has_name = isinstance(getattr(innermost, "__name__", None), str)
    named = innermost if has_name else type(innermost)
    qualname = getattr(named, "__qualname__", None)
    return named.__name__, qualname if isinstance(qualname, str) else named.__name__


def _shown(fun: Any) -> dict[str, Any]:
    # (Equinox has an object of its own in place of what a Module lacks.)
    found = [(name, getattr(fun, name, _LACKING)) for name in _WRAPPER_NAMES]
    return {name: x for name, x in found if isinstance(x, str | dict | None)}


_LACKING: Any = object()


# The most functions that are remembered for one class of callables.
_MAX_REMEMBERED = 1024

# From a function, or the class of any other callable, to what was created for it. The
# values only refer to functions weakly, so entries die with their function. (One that
# is referred to by its own compiled functions, or by a default of its own, lives as
# long.)
_functions: weakref.WeakKeyDictionary[Any, dict[Any, Function]] = (
    weakref.WeakKeyDictionary()
)


def function_for(fun: Any, description: Description, options: Options) -> Function:
    """The `Function` of a callable: the same one each time that it is wrapped."""
    plain, names, parameters, _ = description
    donate, asynchronous, jit_kwargs = options
    more = static_key(jit_kwargs) if jit_kwargs else ()
    # The place tells `eqx.Partial`s of different functions apart.
    place = None if plain else place_of(weak_source(fun)())
    key = plain, names, place, parameters.key(), donate, asynchronous, more
    known = _functions.setdefault(fun if plain else type(fun), {})
    function = known.get(key)
    if function is not None:
        return function
    function = Function(fun, parameters, options, names, with_fun=not plain)
    if len(known) == _MAX_REMEMBERED:  # a program may make up names
        known.clear()
    # There is no lock, so another thread may get here, too. The first one wins.
    return known.setdefault(key, function)
