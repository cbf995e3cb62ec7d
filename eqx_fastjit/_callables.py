"""Describes a callable that is wrapped: what it is behind its wrappers."""

import functools
import inspect
import itertools
import types
from typing import Any, NamedTuple

import equinox as eqx

from ._engine import engine_module
from ._facts import Place
from ._parameters import signature_of
from ._statics import has_only_identity


class Description(NamedTuple):
    """What wrapping needs to know about a callable."""

    # Whether it is not a pytree, is only equal to itself, and has weak references.
    plain: bool
    # Its name and qualified name, as Equinox and JAX's logs show them.
    names: tuple[str, str]
    # Where the Python function behind it was defined.
    place: Place | None
    signature: inspect.Signature
    # All this. Defaults by the contract, to which 1 and 1.0 are not the same.
    key: tuple[Any, ...]


def describe(fun: Any) -> Description:
    """The description of a callable."""
    # By its very type: a proxy (of `wrapt`, say) claims to be an instance of it.
    is_function = type(fun) is types.FunctionType
    call = fun if is_function else getattr(type(fun), "__call__", None)  # noqa: B004
    is_own = type(call) is types.FunctionType and not _wraps(fun) and not _wraps(call)
    behind = innermost(fun)
    # A Module that Equinox has built again may have something else as its `__name__`.
    has_name = isinstance(getattr(behind, "__name__", None), str)
    named = behind if has_name else type(behind)
    qualname = getattr(named, "__qualname__", None)
    names = named.__name__, qualname if isinstance(qualname, str) else named.__name__
    place, signature = place_of(fun), signature_of(fun, is_own=is_own)
    plain = has_only_identity(fun) and type(fun).__weakrefoffset__ != 0
    found = signature.parameters.values()
    kinds = tuple([int(p.kind) for p in found])
    defaults = engine_module().static_key([p.default for p in found])
    key = plain, names, place, tuple(signature.parameters), kinds, defaults
    return Description(plain, names, place, signature, key)


def _wraps(fun: Any) -> bool:
    """Whether it stands for something else, or shows the signature of that."""
    return innermost(fun) is not fun or hasattr(fun, "__signature__")


def shown_of(fun: Any) -> dict[str, Any]:
    """The attributes that its jitted function copies."""
    # (Python 3.14 has `__annotate__` in place of the last one.)
    names = {*functools.WRAPPER_ASSIGNMENTS, "__annotations__"}
    # (What a Module lacks may be something else than these.)
    found = [(name, getattr(fun, name, ...)) for name in names]
    return {name: x for name, x in found if isinstance(x, str | dict | None)}


# --- what is behind it ----------------------------------------------------------------


def innermost(fun: Any) -> Any:
    """What is behind a callable: a function, a class, a Module, ..."""
    for _ in range(20):  # one may wrap itself
        is_partial = isinstance(fun, functools.partial) or type(fun) is eqx.Partial
        inside = fun.func if is_partial else getattr(fun, "__wrapped__", fun)
        if inside is fun:
            break
        fun = inside
    return fun


def source_of(fun: Any) -> types.FunctionType | None:
    """The Python function behind a callable, if there is one."""
    fun = innermost(fun)
    if type(fun) is types.MethodType:
        fun = fun.__func__
    if type(fun) is not types.FunctionType:
        fun = innermost(getattr(type(fun), "__call__", None))  # noqa: B004
    return fun if type(fun) is types.FunctionType else None


def place_of(fun: Any) -> Place | None:
    """Where the Python function behind a callable was defined."""
    source = source_of(fun)
    if source is None:
        return None
    code = source.__code__
    return Place(code.co_filename, code.co_firstlineno, code.co_qualname)


def column_of(fun: Any) -> int | None:
    """Where in its line the body of a lambda, say, begins."""
    source = source_of(fun)
    if source is None:
        return None
    positions = itertools.islice(source.__code__.co_positions(), 1, 2)
    return next((column for *_, column, _ in positions), None)
