"""One spelling for every call.

`f(1, y)`, `f(1, y=y)` and, for `def f(x, y=2)`, `f(1)` and `f(1, 2)` are the same call
and must share a trace. So the arguments of each call are *bound*: one value per
parameter, in order. Defaults are those at the time of wrapping.
"""

import functools as ft
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

from ._private import hide_from_tracebacks
from ._statics import flatten_one_level, is_array


hide_from_tracebacks(__file__)

_POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_ONLY
_VAR_POSITIONAL = inspect.Parameter.VAR_POSITIONAL
_KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD


class Omitted:
    """Passed for an omitted parameter whose default is the function's affair.

    Two are the same if they stand for the same default.
    """

    __slots__ = ("default",)

    def __init__(self, default: Any):
        self.default = default

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Omitted) and self.default is other.default

    def __hash__(self) -> int:
        return id(self.default)

    def __repr__(self) -> str:
        return "<default>"


# The default of a parameter is unknown, or may differ from the one that a call uses.
_UNKNOWN: Any = object()


class Parameters:
    """The parameters of a callable: names, kinds, and what to pass for defaults."""

    def __init__(self, fun: Callable[..., Any]):
        try:
            found = list(inspect.signature(fun).parameters.values())
        except ValueError:  # a builtin without a signature, such as `max`
            found = [
                inspect.Parameter("args", _VAR_POSITIONAL),
                inspect.Parameter("kwargs", _VAR_KEYWORD),
            ]
        own = _defaults_of(fun)
        self.names = tuple([p.name for p in found])
        self.kinds = tuple([p.kind for p in found])
        # For each, a tuple of what to pass if it is omitted; empty if it may not be.
        self.defaults = tuple(
            [
                ()
                if p.default is inspect.Parameter.empty
                else (_passed(own.get(p.name, _UNKNOWN)),)
                for p in found
            ]
        )

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        kinds: Sequence[Any],
        defaults: Sequence[tuple[Any, ...]],
    ) -> "Parameters":
        """Parameters that are known."""
        out = object.__new__(cls)
        out.names, out.kinds = tuple(names), tuple(kinds)
        out.defaults = tuple(defaults)
        return out

    def without(self, n: int) -> "Parameters":
        """Those after the first `n`."""
        return self.of(self.names[n:], self.kinds[n:], self.defaults[n:])

    def key(self) -> Any:
        """The same for callables that may share a `Function`."""
        return self.names, self.kinds, tuple(map(bool, self.defaults))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Parameters)
            and self.key() == other.key()
            and all(map(_same_default, self.defaults, other.defaults))
        )

    def __hash__(self) -> int:
        return hash(self.key())

    @ft.cached_property
    def kind_names(self) -> tuple[str, ...]:
        """The kinds by their names in `inspect`, as the engine takes them."""
        return tuple([kind.name for kind in self.kinds])

    @ft.cached_property
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
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as e:
            why = str(e)
            try:
                # As in Python, a misspelt keyword is named before what it leaves out.
                self.signature.bind_partial(*args, **kwargs)
            except TypeError as earlier:
                why = str(earlier)
            raise TypeError(f"{name}() {why}") from None
        bound.apply_defaults()
        return tuple([bound.arguments[name] for name in self.names])

    def to_call(self, values: tuple[Any, ...]) -> tuple[list[Any], dict[str, Any]]:
        """Turn one value per parameter into the arguments of an ordinary call."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        by_keyword = False
        for name, kind, value in zip(self.names, self.kinds, values, strict=True):
            if kind is _VAR_POSITIONAL:
                args.extend(value)
            elif kind is _VAR_KEYWORD:
                kwargs.update(value)
            elif type(value) is Omitted:
                # The rest can no longer be identified by position.
                by_keyword = True
            elif kind is _POSITIONAL_ONLY and by_keyword:
                pass  # not passed either, and its default is the function's affair
            elif kind is _KEYWORD_ONLY or by_keyword:
                kwargs[name] = value
            else:
                args.append(value)
        return args, kwargs

    def first_is_positional(self) -> bool:
        """Whether there can be a first positional argument."""
        return bool(self.kinds) and self.kinds[0] <= _VAR_POSITIONAL

    def fun_index(self) -> int:
        """The index, among the values, of a callable that is passed along.

        After the first positional argument: of several arrays that could be reused for
        a result, JAX takes the first donated one, and this is Equinox's order.
        """
        return int(self.first_is_positional())

    def named(
        self, values: tuple[Any, ...], fun: tuple[str, Any] | None = None
    ) -> list[tuple[str, Any]]:
        """Each argument, with its name as the user would write it.

        `fun` is the name and value of a callable that is passed along.
        """
        groups: list[list[tuple[str, Any]]] = []
        for name, kind, value in zip(self.names, self.kinds, values, strict=True):
            if kind is _VAR_POSITIONAL:
                groups.append([(f"{name}[{j}]", x) for j, x in enumerate(value)])
            elif kind is _VAR_KEYWORD:
                # In JAX's order of dictionaries.
                groups.append([(key, value[key]) for key in sorted(value)])
            else:
                groups.append([(name, value)])
        if fun is not None:
            groups.insert(self.fun_index(), [fun])
        return [x for group in groups for x in group]


def _same_default(x: tuple[Any, ...], y: tuple[Any, ...]) -> bool:
    return x is y or (bool(x) and (x[0] is y[0] or _same_omitted(x[0], y[0])))


def _same_omitted(x: Any, y: Any) -> bool:
    return type(x) is type(y) is Omitted and x == y


def _passed(default: Any) -> Any:
    """What to pass for a parameter that is omitted."""
    if default is not _UNKNOWN and _is_static_default(default):
        return default
    return Omitted(default)


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


def _defaults_of(fun: Any) -> dict[str, Any]:
    """The defaults of the Python function that `fun` calls with unchanged arguments.

    Empty if there is none, or if `fun` shows the signature of something else, as
    `functools.wraps` and its like do.
    """
    # By its very type: a proxy (of `wrapt`, say) claims to be an instance of it.
    if type(fun) is not types.FunctionType:
        if isinstance(fun, type) or hasattr(fun, "__signature__"):
            return {}
        if hasattr(fun, "__wrapped__"):
            return {}
        fun = getattr(type(fun), "__call__", None)  # noqa: B004
        if type(fun) is not types.FunctionType:
            return {}
    if fun.__dict__.keys() & {"__wrapped__", "__signature__", "__text_signature__"}:
        return {}
    code = fun.__code__
    names = code.co_varnames[: code.co_argcount]
    positional = fun.__defaults__ or ()
    out = dict(zip(names[len(names) - len(positional) :], positional, strict=True))
    return {**out, **(fun.__kwdefaults__ or {})}
