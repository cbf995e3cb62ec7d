"""One spelling for every call.

`f(1, y)`, `f(1, y=y)` and, for `def f(x, y=2)`, `f(1)` and `f(1, 2)` are the same call
and must share a trace. So the arguments of each call are *bound*: one value per
parameter, in order. Defaults are those at the time of wrapping.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from ._statics import flatten_one_level, is_array


_POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_ONLY
_VAR_POSITIONAL = inspect.Parameter.VAR_POSITIONAL
_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD


class _Omitted:
    """Passed for an omitted parameter whose default is the function's affair."""

    __slots__ = ()
    __qualname__ = "default"  # in messages

    def __repr__(self) -> str:
        return "<default>"


OMITTED = _Omitted()


class Parameters(NamedTuple):
    """The parameters of a callable: names, kinds, and what to pass for defaults."""

    names: tuple[str, ...]
    kinds: tuple[Any, ...]
    # For each, a tuple of what to pass if it is omitted; empty if it may not be.
    defaults: tuple[tuple[Any, ...], ...]

    @property
    def signature(self) -> inspect.Signature:
        """The same as Python has it."""
        empty = inspect.Parameter.empty
        triples = zip(self.names, self.kinds, self.defaults, strict=True)
        return inspect.Signature(
            [
                inspect.Parameter(name, kind, default=default[0] if default else empty)
                for name, kind, default in triples
            ]
        )

    def bind(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ...]:
        """One value per parameter.

        Raises `TypeError`, with the function's name, if the arguments do not fit.
        """
        __tracebackhide__ = True
        try:
            # As in Python, a misspelt keyword is named before what it leaves out.
            self.signature.bind_partial(*args, **kwargs)
            bound = self.signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return tuple([bound.arguments[name] for name in self.names])
        except TypeError as e:
            raise TypeError(f"{name}() {e}") from None
        except KeyError as e:  # https://github.com/python/cpython/issues/130164
            raise TypeError(f"{name}() missing a required argument: {e}") from None

    def to_call(
        self, values: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Turn one value per parameter into the arguments of an ordinary call."""
        given: dict[str, Any] = {}
        omitted = False
        for name, kind, value in zip(self.names, self.kinds, values, strict=True):
            omitted = omitted or value is OMITTED
            # What comes after that is passed by keyword. If it has none, it was not
            # given either, and its default is the function's affair.
            without_keyword = kind in (_POSITIONAL_ONLY, _VAR_POSITIONAL)
            if value is not OMITTED and not (omitted and without_keyword):
                given[name] = value
        bound = inspect.BoundArguments(self.signature, given)  # pyright: ignore
        return bound.args, bound.kwargs

    def first_is_positional(self) -> bool:
        """Whether there can be a first positional argument."""
        return bool(self.kinds) and self.kinds[0] <= _VAR_POSITIONAL

    def named(self, values: tuple[Any, ...]) -> list[list[tuple[str, Any]]]:
        """Each parameter's arguments, with names as the user would write them."""
        groups: list[list[tuple[str, Any]]] = []
        for name, kind, value in zip(self.names, self.kinds, values, strict=True):
            if kind is _VAR_POSITIONAL:
                groups.append([(f"{name}[{j}]", x) for j, x in enumerate(value)])
            elif kind is _VAR_KEYWORD:
                # In JAX's order of dictionaries.
                groups.append([(key, value[key]) for key in sorted(value)])
            else:
                groups.append([(name, value)])
        return groups


def parameters_of(fun: Callable[..., Any], *, is_own: bool) -> Parameters:
    """The parameters of a callable. `is_own` says that its signature is its own."""
    try:
        signature = inspect.signature(fun)
    except ValueError:  # a builtin without a signature, such as `max`
        signature = inspect.signature(lambda *args, **kwargs: None)
    found = signature.parameters.values()
    return Parameters(
        tuple([p.name for p in found]),
        tuple([p.kind for p in found]),
        tuple([_if_omitted(p.default, is_own) for p in found]),
    )


def _if_omitted(default: Any, is_own: bool) -> tuple[Any, ...]:
    """What to pass for a parameter that is omitted, if it has a default."""
    if default is inspect.Parameter.empty:
        return ()
    # If the signature is that of another function, this one may have another default.
    return (default if is_own and _is_static_default(default) else OMITTED,)


def _is_static_default(default: Any) -> bool:
    """Whether a default may as well be passed.

    A default that is a hashable static, or a tuple of such, may be, so that leaving it
    out and giving it are one trace. Any other stays the function's own business: an
    array would be traced if it was given, and of a list the function would get a copy.
    """
    if type(default) is tuple:
        return all(map(_is_static_default, default))
    if default is None:
        return True
    try:
        hash(default)
        return not is_array(default) and flatten_one_level(default) is None
    except Exception:
        return False
