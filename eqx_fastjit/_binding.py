"""Binds arguments, so that all spellings of a call have one form.

`f(1, y)`, `f(1, y=y)` and, for `def f(x, y=2)`, `f(1)` and `f(1, 2)` are the same call
and must share a trace. So the arguments of each call are *bound*: one value per
parameter, in order. `_native.c` binds ordinary calls itself, and uses the functions
made here for all others.
"""

import functools as ft
import inspect
import keyword
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from ._compat import hide_from_tracebacks
from ._nodes import ARRAY_TYPES, is_node
from ._partition import Omitted, omitted
from ._static_keys import append_static


hide_from_tracebacks(__file__)

_POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_ONLY
_VAR_POSITIONAL = inspect.Parameter.VAR_POSITIONAL
_KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD


# The default of a parameter is unknown, or may differ from the one that a call uses.
_UNKNOWN: Any = object()


class Spec(NamedTuple):
    """Names, kinds and presence of defaults of the parameters, in order."""

    names: tuple[str, ...]
    kinds: tuple[Any, ...]
    defaulted: tuple[bool, ...]

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


# The assumed parameters of a builtin without a signature.
GENERIC = Spec(("args", "kwargs"), (_VAR_POSITIONAL, _VAR_KEYWORD), (False, False))


def _is_static_default(default: Any) -> bool:
    """Whether a default may as well be passed.

    A default that is a hashable static, or a tuple of such, may be, so that leaving it
    out and giving it are one trace. Any other stays the function's own business: an
    array would be traced if it was given, a set would be refused, and of a list the
    function would get a copy.
    """
    if type(default) is tuple:
        return all(map(_is_static_default, default))
    if default is None:
        return True
    try:
        if isinstance(default, ARRAY_TYPES) or is_node(default):
            return False
        return not append_static([], default, leaf=True)
    except Exception:
        return False


def _passed(default: Any) -> Any:
    """What to pass for a parameter that is omitted."""
    if default is not _UNKNOWN and _is_static_default(default):
        return default
    return omitted(default)


def _can_name_parameter(name: str) -> bool:
    """Whether a generated function can have a parameter of this name."""
    taken = name in ("__debug__", "__tracebackhide__")
    return name.isidentifier() and not keyword.iskeyword(name) and not taken


def _source(fun: Any) -> types.FunctionType | None:
    """The Python function that `fun` calls with unchanged arguments.

    `None` if there is none, or if `fun` shows the signature of something else, as
    `functools.wraps` and its like do.
    """
    # By its very type: a proxy (of `wrapt`, say) claims to be an instance of it.
    if type(fun) is not types.FunctionType:
        if isinstance(fun, type) or hasattr(fun, "__signature__"):
            return None
        if hasattr(fun, "__wrapped__"):
            return None
        fun = getattr(type(fun), "__call__", None)  # noqa: B004
        if type(fun) is not types.FunctionType:
            return None
    if fun.__dict__.keys() & {"__wrapped__", "__signature__", "__text_signature__"}:
        return None
    return fun


def defaults_of(fun: types.FunctionType) -> dict[str, Any]:
    """The defaults of a function's parameters, by name."""
    code = fun.__code__
    names = code.co_varnames[: code.co_argcount]
    positional = fun.__defaults__ or ()
    out = dict(zip(names[len(names) - len(positional) :], positional, strict=True))
    return {**out, **(fun.__kwdefaults__ or {})}


def _read_spec(fun: Callable[..., Any]) -> Spec:
    try:
        parameters = inspect.signature(fun).parameters.values()
    except ValueError:
        return GENERIC  # e.g. `max`
    if not all(_can_name_parameter(p.name) for p in parameters):
        return GENERIC
    return Spec(
        tuple([p.name for p in parameters]),
        tuple([p.kind for p in parameters]),
        tuple([p.default is not inspect.Parameter.empty for p in parameters]),
    )


class Binding:
    """Turns the arguments of a call into one value per parameter.

    It is out of date (`is_current`) once the function's defaults have been changed, and
    another is made.
    """

    def __init__(self, fun: Callable[..., Any], like: Spec | None = None):
        self.spec = _read_spec(fun)
        source = _source(fun)
        if like is not None and self.spec[:2] != like[:2]:
            # The function's parameters were changed after it was wrapped. As under
            # Equinox, the old ones are used.
            self.spec = like
            source = None
        # A weak reference, because bindings live as long as their function.
        self._source = None if source is None else weakref.ref(source)
        # The original `__defaults__` and items of `__kwdefaults__`.
        self.positional: tuple[Any, ...] | None = getattr(source, "__defaults__", None)
        keyword_only = getattr(source, "__kwdefaults__", None)
        self.keyword = None if keyword_only is None else dict(keyword_only)
        own = {} if source is None else defaults_of(source)
        # What to pass for each that is omitted; `None` for one without a default.
        self.defaults = tuple(
            _passed(own.get(name, _UNKNOWN)) if defaulted else None
            for name, _, defaulted in zip(*self.spec, strict=True)
        )

    @property
    def source(self) -> types.FunctionType | None:
        """The Python function whose defaults these are."""
        return None if self._source is None else self._source()

    @ft.cached_property
    def for_native(self) -> dict[str, Any]:
        """What the native engine needs for binding arguments."""
        spec, known = self.spec, self.keyword or {}
        # For each parameter, what to pass, and the default that this represents.
        defaults = [
            (passed, known.get(name)) if defaulted else None
            for passed, name, _, defaulted in zip(self.defaults, *spec, strict=True)
        ]
        return {
            "names": tuple(map(sys.intern, spec.names)),
            "kinds": bytes(spec.kinds),
            "defaults": tuple(defaults),
            "positional": self.positional,
        }

    def is_current(self) -> bool:
        """Whether the defaults are still those of the function."""
        source = self.source
        if source is None:
            return True
        keyword_only, known = source.__kwdefaults__, self.keyword
        return source.__defaults__ is self.positional and (
            keyword_only is known
            if keyword_only is None or known is None
            else keyword_only.keys() == known.keys()
            and all(value is known[name] for name, value in keyword_only.items())
        )


class _Default(str):
    """Stands for a default in the text of a signature."""

    __repr__ = str.__str__


_TEMPLATE = """
def make(defaults):
    def {name}{signature}:
        __tracebackhide__ = True
        {body}
    return {name}
"""


@ft.lru_cache(maxsize=4096)
def _binder_maker(spec: Spec, name: str, raises: str | None) -> Callable[..., Any]:
    empty = inspect.Parameter.empty
    signature = inspect.Signature(
        [
            inspect.Parameter(
                arg, kind, default=_Default(f"defaults[{i}]") if defaulted else empty
            )
            for i, (arg, kind, defaulted) in enumerate(zip(*spec, strict=True))
        ]
    )
    values = "".join([f"{arg}, " for arg in spec.names])
    source = _TEMPLATE.format(
        name=name,
        signature=signature,
        body=f"raise TypeError({raises!r})" if raises else f"return ({values})",
    )
    namespace: dict[str, Any] = {}
    # A name inside of this package, so that JAX hides these frames in tracebacks as
    # well.
    exec(compile(source, f"{__file__}:binder", "exec"), namespace)
    return namespace["make"]


def make_binder(
    binding: Binding, names: tuple[str, str], raises: str | None = None
) -> Callable[..., tuple[Any, ...]]:
    """A function that returns one value per parameter of a binding.

    It has the same parameters, so binding is done by the interpreter as part of an
    ordinary call, where `inspect.Signature.bind` costs 3 us; and so is the `TypeError`
    for arguments that the function does not take, which names it by the second of
    `names`: its name and its qualified name. With `raises`, it raises a `TypeError` of
    this text instead.
    """
    name, qualname = names
    if not _can_name_parameter(name):
        name = "call"  # e.g. `<lambda>`
    make = _binder_maker(binding.spec, name, raises)
    binder = make(binding.defaults)
    binder.__qualname__ = qualname
    return binder
