"""Describes a callable that is wrapped, and finds or creates its `Function`."""

import functools
import inspect
import operator
import types
import weakref
from typing import Any, NamedTuple

import equinox as eqx

from ._function import Function, weak_source
from ._options import Options
from ._parameters import Parameters, parameters_of
from ._place import Place, place_of
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
    # Where the Python function behind it was defined.
    place: Place | None
    parameters: Parameters
    # The attributes that the jitted function copies.
    shown: dict[str, Any]


# For each function, and each class of callables, its description, and what that was
# read from.
_known: weakref.WeakKeyDictionary[Any, tuple[tuple[Any, ...], Description]] = (
    weakref.WeakKeyDictionary()
)


def describe(fun: Any) -> Description:
    """The description of a callable.

    It is kept, because `inspect.signature` takes 60 us: a loop that calls
    `filter_jit(model)(x)` should not pay this each time.
    """
    # By its very type: a proxy (of `wrapt`, say) claims to be an instance of it.
    is_function = type(fun) is types.FunctionType
    owner = fun if is_function else type(fun)
    call = fun if is_function else getattr(owner, "__call__", None)  # noqa: B004
    if type(call) is not types.FunctionType or _wraps(fun):
        return _read(fun, is_own=False)
    # Without a name of its own, an instance has the description of its class.
    if not is_function and hasattr(fun, "__name__"):
        return _read(fun, is_own=not _wraps(call))
    source = call.__code__, call.__defaults__, call.__kwdefaults__
    then, known = _known.get(owner, ((), None))
    if known is None or not all(map(operator.is_, then, source)):
        known = _read(fun, is_own=not _wraps(call))
        _known[owner] = source, known
    return known


def _wraps(fun: Any) -> bool:
    """Whether it stands for something else, and shows the signature of that."""
    is_wrapper = hasattr(fun, "__wrapped__") or hasattr(fun, "__signature__")
    return is_wrapper or type(fun) is eqx.Partial


def _read(fun: Any, *, is_own: bool) -> Description:
    place, parameters = place_of(weak_source(fun)()), parameters_of(fun, is_own=is_own)
    return Description(_is_plain(fun), _names(fun), place, parameters, _shown(fun))


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
    plain, names, place, parameters, _ = description
    donate, asynchronous, jit_kwargs = options
    more = static_key(jit_kwargs) if jit_kwargs else ()
    # The place tells `eqx.Partial`s of different functions apart.
    key = plain, names, place, parameters, donate, asynchronous, more
    known = _functions.setdefault(fun if plain else type(fun), {})
    function = known.get(key)
    if function is not None:
        return function
    function = Function(fun, parameters, options, names, place, with_fun=not plain)
    if len(known) == _MAX_REMEMBERED:  # a program may make up names
        known.clear()
    # There is no lock, so another thread may get here, too. The first one wins.
    return known.setdefault(key, function)
