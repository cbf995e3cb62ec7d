"""One spelling for every call.

`f(1, y)`, `f(1, y=y)` and, for `def f(x, y=2)`, `f(1)` and `f(1, 2)` are the same call
and must share a trace. So the arguments of each call are *bound*: one value per
parameter, in order, by `csrc/call.c` or `Function.bind`. Defaults are those at the time
of wrapping.
"""

import inspect
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

import jax.tree_util as jtu

from ._statics import is_array


class _Omitted:
    """Passed for an omitted parameter whose default is the function's affair."""

    __qualname__ = "default"  # in messages

    def __repr__(self) -> str:
        return "<default>"


OMITTED = _Omitted()


_WITHOUT_KEYWORD = (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL)


def to_call(
    signature: Signature, values: tuple[Any, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Turn one value per parameter into the arguments of an ordinary call."""
    given: dict[str, Any] = {}
    omitted = False
    for parameter, value in zip(signature.parameters.values(), values, strict=True):
        omitted = omitted or value is OMITTED
        # What comes after that is passed by keyword. If it has none, it was not given
        # either, and its default is the function's affair.
        without_keyword = parameter.kind in _WITHOUT_KEYWORD
        if value is not OMITTED and not (omitted and without_keyword):
            given[parameter.name] = value
    bound = inspect.BoundArguments(signature, given)  # pyright: ignore
    return bound.args, bound.kwargs


def signature_of(fun: Callable[..., Any], *, is_own: bool) -> Signature:
    """The parameters of a callable, with what to pass for those that are omitted.

    `is_own` says that its signature is its own.
    """
    try:
        found = inspect.signature(fun)
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
