"""Describes a callable that is wrapped, and creates its `Function`."""

import contextlib
import functools as ft
import sys
import types
import weakref
from collections.abc import MutableMapping
from typing import Any, NamedTuple

from . import _compat
from ._binding import Binding
from ._compat import instance_dict
from ._function import Function
from ._nodes import is_module_class, is_node, MISSING, WRAPPER_NAMES
from ._options import Options
from ._parts import is_identity_type, mro_of
from ._static_keys import static_key


_CALL = "__call__"
# Functions remembered, for when they are wrapped again. One that is referred to by its
# own compiled functions (by a static that refers back to it), or by a default of its
# own, would live as long.
_MAX_FUNCTIONS = 1024
# From a function, or the class of any other callable, to what was created for it. The
# values only refer to functions weakly, so entries die with their function.
_functions: weakref.WeakKeyDictionary[Any, dict[Any, Function]] = (
    weakref.WeakKeyDictionary()
)


class Description(NamedTuple):
    """What wrapping needs to know about a callable."""

    # Whether it is not a pytree, and is only equal to itself.
    plain: bool
    # Its name and qualified name, as Equinox and JAX's logs show them.
    names: tuple[str, str]
    binding: Binding
    # The attributes that the jitted function copies.
    shown: dict[str, Any]
    # A function's code, or (weakly) the function behind a Module's `__call__`.
    code: Any


def _is_plain(fun: Any) -> bool:
    if type(fun) is types.FunctionType:
        return True
    if is_node(fun) or not is_identity_type(type(fun)):
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


# Descriptions of functions, and of Modules by class. Describing one takes 60 us, mostly
# in `inspect.signature`. A loop that calls `filter_jit(model)(x)` should not pay this
# each time.
_described: weakref.WeakKeyDictionary[Any, Description] = weakref.WeakKeyDictionary()
_compat.on_clear_caches(_described.clear)


def describe(fun: Any) -> Description:
    """The description of a callable, which is cached if it is expensive."""
    cls = type(fun)
    if cls is types.FunctionType:
        # Without attributes, which may claim that it is like another callable.
        owner = fun if not fun.__dict__ else None
    else:
        call = getattr(cls, _CALL, None)
        by_class = type(call) is types.FunctionType and is_module_class(cls)
        by_class = by_class and instance_dict(fun).keys().isdisjoint(WRAPPER_NAMES)
        owner = cls if by_class else None
    known = None if owner is None else _described.get(owner)
    if known is not None and _is_as_described(fun, known):
        return known
    out = Description(
        _is_plain(fun), _names(fun), Binding(fun), _shown(fun), _code(fun)
    )
    if owner is cls and any(map(_differs_by_instance, mro_of(cls))):
        owner = None
    if owner is not None:
        _make_room(_described)
        _described[owner] = out
    return out


def _make_room(known: MutableMapping[Any, Any]) -> None:
    """Drop the oldest. Those that are still wrapped somewhere stay alive."""
    while len(known) >= _MAX_FUNCTIONS:
        # Another thread may clear it in between.
        with contextlib.suppress(RuntimeError):
            oldest = next(iter(known), None)
            if oldest is None:
                return  # all are gone, though the collector may not have said so yet
            known.pop(oldest, None)


def _code(fun: Any) -> Any:
    if type(fun) is types.FunctionType:
        return fun.__code__
    call = getattr(type(fun), _CALL, None)
    return weakref.ref(call) if type(call) is types.FunctionType else None


def _shown(fun: Any) -> dict[str, Any]:
    shown = {}
    for name in WRAPPER_NAMES:
        with contextlib.suppress(AttributeError):
            value = getattr(fun, name)
            shown[name] = getattr(type(fun), name) if value is MISSING else value
    return shown


def _is_as_described(fun: Any, known: Description) -> bool:
    if type(fun) is not types.FunctionType:
        return known.code == _code(fun) and known.binding.is_current()
    return (
        known.code is fun.__code__
        and (fun.__name__, fun.__qualname__) == known.names
        and known.binding.is_current()
        and known.shown == _shown(fun)
    )


# If a class defines one of these, its instances may have different descriptions.
_OF_INSTANCES = {"__wrapped__", "__signature__", "__getattr__"}


def _differs_by_instance(cls: type) -> bool:
    """Whether a class defines one of these, or a property as a name or a docstring."""
    values = vars(cls)
    shown = [values.get(name) for name in WRAPPER_NAMES]
    return bool(values.keys() & _OF_INSTANCES) or any(
        hasattr(type(x), "__get__") for x in shown
    )


def function_for(fun: Any, described: Description, options: Options) -> Function:
    """The `Function` of a callable: the same one each time that it is wrapped."""
    spec = described.binding.spec
    # (`PartitionSpec()` is false.)
    shardings = options.in_shardings, options.out_shardings
    more = options.jit_kwargs or any(x is not None for x in shardings)
    plain = described.plain
    owner = fun if plain else type(fun)
    rest = static_key(options) if more else None
    # `plain`, since a class may be wrapped, and its instances, which are passed along,
    # with a `__call__` of the same parameters.
    key = (plain, spec, described.names, options[:4], rest)
    function = _functions.get(owner, {}).get(key)
    if function is not None:
        return function
    function = Function(fun, spec, options, described.names, with_fun=not plain)
    _make_room(_functions)
    known = _functions.setdefault(owner, {})
    _make_room(known)  # programs may make up names, of which each is another
    # There is no lock, so another thread or a signal handler may get here, too. The
    # first one wins.
    return known.setdefault(key, function)
