"""A callable that is wrapped: what it is behind its wrappers, and how calls are bound.

`f(1, y)`, `f(1, y=y)` and, for `def f(x, y=2)`, `f(1)` and `f(1, 2)` are the same call
and must share a trace. So the arguments of each call are *bound*: a generated function
with the signature of the user's, which Python itself binds, returns one value per
parameter, in order. Defaults are those at the time of wrapping. Arguments that are all
by position, one for each parameter of a plain function, are these values already.
"""

import contextlib
import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, NamedTuple

import jax.tree_util as jtu
from equinox import Partial

from ._engine import ENGINE
from ._facts import Place
from ._statics import has_only_identity, is_array


class Description(NamedTuple):
    """What wrapping needs to know about a callable."""

    # Whether it is no pytree, is only equal to itself, and can be referred to weakly.
    plain: bool
    # Its name and qualified name, as Equinox and JAX's logs show them.
    names: tuple[str, str]
    # Where the Python function behind it was defined.
    place: Place | None
    signature: Signature
    # All this, to compare: defaults as the statics of calls are, so that 1 is not 1.0.
    key: tuple[Any, ...]


def describe(fun: Any) -> Description:
    """The description of a callable."""
    # By its very type: a proxy (of `wrapt`, say) claims to be an instance of it.
    is_function = type(fun) is types.FunctionType
    call = fun if is_function else getattr(type(fun), "__call__", None)  # noqa: B004
    # Whether the signature is that of the Python function which is called.
    is_own = type(call) is types.FunctionType and not _wraps(fun) and not _wraps(call)
    signature = signature_of(fun, is_own=is_own)
    place, names = place_of(fun), _names_of(fun)
    plain = has_only_identity(fun) and type(fun).__weakrefoffset__ != 0

    found = signature.parameters.values()
    kinds = tuple(int(p.kind) for p in found)
    # The signature of a call with the defaults; there are no arrays among them.
    of_defaults, _ = ENGINE.read(tuple(p.default for p in found), False)
    key = plain, names, place, tuple(signature.parameters), kinds, of_defaults
    return Description(plain, names, place, signature, key)


def _names_of(fun: Any) -> tuple[str, str]:
    """Its name and qualified name."""
    behind = innermost(fun)
    # A Module that wraps a function has its `__name__` in a field: once JAX has rebuilt
    # it from other leaves, anything may be there.
    has_name = isinstance(getattr(behind, "__name__", None), str)
    named = behind if has_name else type(behind)
    qualname = getattr(named, "__qualname__", None)
    return named.__name__, qualname if isinstance(qualname, str) else named.__name__


def _wraps(fun: Any) -> bool:
    """Whether it stands for something else, or shows the signature of that."""
    return innermost(fun) is not fun or hasattr(fun, "__signature__")


def copied_attributes(fun: Any) -> dict[str, Any]:
    """The attributes that its jitted function copies."""
    copied: dict[str, Any] = {}
    # (Python 3.14 has `__annotate__` in place of the last one.)
    for name in {*functools.WRAPPER_ASSIGNMENTS, "__annotations__"}:
        # An attribute may be absent, or JAX may have put something else there. And
        # Python 3.14 evaluates annotations now, which may not be possible yet.
        with contextlib.suppress(AttributeError, NameError):
            value = getattr(fun, name)
            if isinstance(value, str | dict | None | types.FunctionType):
                copied[name] = value
    return copied


# --- what is behind it ----------------------------------------------------------------


def innermost(fun: Any) -> Any:
    """What is behind a callable: a function, a class, a Module, ..."""
    for _ in range(20):  # one may wrap itself
        is_partial = isinstance(fun, functools.partial) or type(fun) is Partial
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
    # What comes before the body, such as `RESUME`, has no text: it ends at 0.
    positions = source.__code__.co_positions()
    return next((column for *_, column, end in positions if end), None)


# --- binding --------------------------------------------------------------------------


class _Omitted:
    """Passed for an omitted parameter whose default is the function's affair."""

    __qualname__ = "default"  # in messages

    def __repr__(self) -> str:
        return "<default>"


OMITTED = _Omitted()


def binder_of(
    signature: Signature, qualname: str, fun_index: int
) -> Callable[[Any], Callable[..., tuple[Any, ...]]]:
    """How to bind calls of this signature: one value per parameter.

    **Returns:** a function `bound_to`. `bound_to(fun)(*args, **kwargs)` is the tuple of
    the values, or raises the `TypeError` that a call of `fun` would. `fun` itself is at
    `fun_index` of the tuple, unless that is -1.
    """
    parameters = list(signature.parameters.values())
    code = _binding_code(tuple(p.kind for p in parameters), fun_index)
    # Any name will do, also `fun`: the code has indices, and only binding has names.
    names = tuple(parameters[int(name[1:])].name for name in code.co_varnames)
    code = code.replace(co_varnames=names)

    with_default = [p for p in parameters if p.default is not p.empty]
    by_keyword = [p for p in with_default if p.kind is p.KEYWORD_ONLY]
    others = [p for p in with_default if p.kind is not p.KEYWORD_ONLY]
    defaults = tuple(p.default for p in others)

    def bound_to(fun: Any) -> Callable[..., tuple[Any, ...]]:
        cells = tuple(types.CellType(fun) for _ in code.co_freevars)
        bind = types.FunctionType(code, {}, "bind", defaults, cells)
        bind.__qualname__ = qualname
        bind.__kwdefaults__ = {p.name: p.default for p in by_keyword}
        return bind

    return bound_to


@functools.lru_cache(maxsize=1024)
def _binding_code(kinds: tuple[Any, ...], fun_index: int) -> types.CodeType:
    """The code of a function of these kinds of parameters: `p0`, `p1` and so on."""
    signature = Signature([Parameter(f"p{i}", kind) for i, kind in enumerate(kinds)])
    values = list(signature.parameters)
    if fun_index >= 0:
        values.insert(fun_index, "fun")
    items = "".join(f"{x}, " for x in values)
    source = f"lambda fun: lambda {str(signature)[1:-1]}: ({items})"
    # As of this file, whose frames are left out of tracebacks.
    outer = eval(compile(source, __file__, "eval"))
    return outer(None).__code__


def to_call(
    signature: Signature, values: tuple[Any, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Turn one value per parameter into the arguments of an ordinary call."""
    given: dict[str, Any] = {}
    omitted = False
    for p, value in zip(signature.parameters.values(), values, strict=True):
        omitted |= value is OMITTED
        # What comes after an omitted one is passed by keyword. One that only goes by
        # position cannot have been given then.
        without_keyword = p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)
        if value is not OMITTED and not (omitted and without_keyword):
            given[p.name] = value

    bound = inspect.BoundArguments(signature, given)  # pyright: ignore
    return bound.args, bound.kwargs


python_signature: Any = inspect.signature
# Python 3.14 evaluates annotations for a signature. They may name what is imported for
# type checkers alone, or the class that is being defined.
if sys.version_info >= (3, 14):
    from annotationlib import Format

    python_signature = functools.partial(
        python_signature, annotation_format=Format.FORWARDREF
    )


def signature_of(fun: Callable[..., Any], *, is_own: bool) -> Signature:
    """The parameters of a callable, with what to pass for those that are omitted.

    `is_own`: whether the signature, and so its defaults, is that of the Python function
    that is called, rather than shown for another one (`__wrapped__`).
    """
    try:
        found = python_signature(fun)
    except ValueError:  # a builtin without a signature, such as `max`
        found = inspect.signature(lambda *args, **kwargs: None)

    # Without annotations, which may refer to the callable.
    return Signature(
        [
            Parameter(p.name, p.kind, default=_if_omitted(p.default, is_own))
            for p in found.parameters.values()
        ]
    )


def _if_omitted(default: Any, is_own: bool) -> Any:
    """What to pass for a parameter that is omitted, if it has a default.

    A default that has a hash and no arrays may as well be passed, so that leaving it
    out and giving it are one trace. Any other stays the function's own business: an
    array would be traced if it was given, and of a list the function would get a copy.
    """
    if default is Parameter.empty:
        return default
    try:
        hash(default)
        may_be_passed = not any(map(is_array, jtu.tree_leaves(default)))
    except Exception:
        may_be_passed = False
    # If the signature is that of another function, this one may have another default.
    return default if is_own and may_be_passed else OMITTED


# --- what was created for it ---------------------------------------------------------


# Where a function keeps what was created for it.
_NAME = "__eqx_fastjit__"


class _Created(dict[Any, Any]):
    """What was created for one function, by options; in the function's own `__dict__`.

    What is compiled may refer to the function. As the function alone keeps it, that is
    a cycle, which Python frees; from a global it would keep the function alive.
    """

    __slots__ = ("owner",)

    def __init__(self, owner: Any):
        # `functools.wraps` copies what is in the dictionary to another function.
        self.owner = weakref.ref(owner)

    def __reduce__(self) -> Any:
        return dict, ()  # `cloudpickle` would pickle what was compiled


# From any other callable that is only equal to itself, or the class of one that is
# not, to what was created for it. (What is created has the description of the callable
# as a key, so those of one class are told apart. JAX keeps such classes alive, too.)
_remembered: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = (
    weakref.WeakKeyDictionary()
)


def created_for(fun: Any, plain: bool) -> dict[Any, Any]:
    """What was created for it, by options; or for its class, unless it is `plain`."""
    if not plain or type(fun) not in (types.FunctionType, functools.partial):
        return _remembered.setdefault(fun if plain else type(fun), {})
    created = vars(fun).setdefault(_NAME, _Created(fun))
    if type(created) is not _Created or created.owner() is not fun:
        created = vars(fun)[_NAME] = _Created(fun)
    return created
