"""One spelling for every call.

`f(1, y)`, `f(1, y=y)` and, for `def f(x, y=2)`, `f(1)` and `f(1, 2)` are the same call
and must share a trace. So each wrapped function gets a *front*: a generated Python
function with the same parameters, which hands all of them to the dispatcher by
position. Binding is then done by the interpreter as part of an ordinary call. That is
free, where packing and unpacking `*args, **kwargs` costs 0.3 us, and
`inspect.Signature.bind` 3 us.
"""

import functools as ft
import inspect
import keyword
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.tree_util as jtu

from ._compat import hide_from_tracebacks
from ._statics import leaf_token
from ._structure import ARRAY_TYPES


hide_from_tracebacks(__file__)

_POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_ONLY
_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
_VAR_POSITIONAL = inspect.Parameter.VAR_POSITIONAL
_KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD


class _Omitted:
    """Stands for a parameter that was not passed and whose default stays unseen."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<omitted>"


OMITTED = _Omitted()


class Spec(NamedTuple):
    """Names and kinds of the parameters, in order; which of them have a default."""

    names: tuple[str, ...]
    kinds: tuple[Any, ...]
    defaulted: tuple[bool, ...]

    def to_call(self, values: tuple[Any, ...]) -> tuple[list[Any], dict[str, Any]]:
        """From one value per parameter to the arguments of an ordinary call."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        by_keyword = False
        for name, kind, value in zip(self.names, self.kinds, values, strict=True):
            if kind is _VAR_POSITIONAL:
                args.extend(value)
            elif kind is _VAR_KEYWORD:
                kwargs.update(value)
            elif value is OMITTED:
                # What follows can no longer be told by position.
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
        return bool(self.kinds) and self.kinds[0] in (
            _POSITIONAL_ONLY,
            _POSITIONAL,
            _VAR_POSITIONAL,
        )

    def fun_index(self) -> int:
        """Where a callable that is passed along stands among the values.

        After the first positional argument: of several arrays that could be reused for
        a result, JAX takes the first donated one, and this is Equinox's order.
        """
        return int(self.first_is_positional())

    def named(
        self, values: tuple[Any, ...], fun: tuple[str, Any] | None = None
    ) -> list[tuple[str, Any]]:
        """Each argument with its name as the user would write it.

        `fun` is the name and value of a callable that is passed along.
        """
        out: list[tuple[str, Any]] = []
        pending = [] if fun is None else [fun]
        for i, (name, kind, value) in enumerate(
            zip(self.names, self.kinds, values, strict=True)
        ):
            if i == self.fun_index():
                out += pending
                pending = []
            if kind is _VAR_POSITIONAL:
                out += [(f"{name}[{j}]", x) for j, x in enumerate(value)]
            elif kind is _VAR_KEYWORD:
                # In the order in which JAX goes through a dictionary.
                out += [(key, value[key]) for key in sorted(value)]
            else:
                out.append((name, value))
        return out + pending


# What a builtin without a signature is taken to accept.
GENERIC = Spec(("args", "kwargs"), (_VAR_POSITIONAL, _VAR_KEYWORD), (False, False))


def _as_passed(default: Any) -> Any:
    """The default as it would be passed, or `OMITTED` if it must not be.

    A default that is a hashable static, or a tuple of such, may as well be given, so
    that leaving it out and giving it are one trace. Any other stays the function's own
    business: an array would be traced if it was given, a set would be refused, and of a
    list the function would get a copy.
    """
    if type(default) is tuple:
        return OMITTED if OMITTED in map(_as_passed, default) else default
    if default is None:
        return default
    try:
        if isinstance(default, ARRAY_TYPES) or not jtu.all_leaves([default]):
            return OMITTED
        leaf_token(default)
    except Exception:
        return OMITTED
    return default


def _shows_own_signature(fun: Any) -> bool:
    """Whether the defaults in the signature are those that a call would use.

    Not so for `functools.wraps` and its like, which show the signature of another.
    """
    if not isinstance(fun, types.FunctionType):
        fun = getattr(type(fun), "__call__")  # noqa: B004, B009
        if not isinstance(fun, types.FunctionType):
            return False
    return fun.__dict__.keys().isdisjoint({"__wrapped__", "__signature__"})


def _can_name_parameter(name: str) -> bool:
    """Whether a front can have a parameter of this name."""
    taken = name in ("BaseException", "__tracebackhide__", "__debug__")
    return name.isidentifier() and not keyword.iskeyword(name) and not taken


def read_signature(fun: Callable[..., Any]) -> tuple[Spec, tuple[Any, ...]]:
    """The `Spec` of a callable, and what to pass for parameters with a default."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except ValueError:
        return GENERIC, ()  # e.g. `max`
    names = tuple([p.name for p in parameters])
    if not all(map(_can_name_parameter, names)):
        return GENERIC, ()
    spec = Spec(
        names,
        tuple([p.kind for p in parameters]),
        tuple([p.default is not inspect.Parameter.empty for p in parameters]),
    )
    own = _shows_own_signature(fun) and not hasattr(fun, "__wrapped__")
    defaults = [
        _as_passed(p.default) if own else OMITTED
        for p, defaulted in zip(parameters, spec.defaulted, strict=True)
        if defaulted
    ]
    return spec, tuple(defaults)


_TEMPLATE = """
def make({variables}):
    def {name}({parameters}):
        __tracebackhide__ = True
        try:
            return {dispatch}({values})
        except BaseException as {error}:
            {error} = {translate}({error})
            if {error} is None:
                raise
            raise {error} from None
    return {name}
"""


@ft.lru_cache(maxsize=4096)
def _front_maker(
    spec: Spec, with_fun: bool, name: str
) -> tuple[Callable[..., Any], str]:
    taken = set(spec.names) | {name}

    def free(wanted: str) -> str:
        while wanted in taken:
            wanted += "_"
        taken.add(wanted)
        return wanted

    dispatch, translate, fun, error = map(
        free, ("dispatch", "translate", "fun", "error")
    )
    default_names = []
    parameters = []
    values = []
    kinds = spec.kinds
    has_star = _VAR_POSITIONAL in kinds
    for i, (arg, kind, defaulted) in enumerate(
        zip(spec.names, kinds, spec.defaulted, strict=True)
    ):
        text = arg
        if kind is _VAR_POSITIONAL:
            text = f"*{arg}"
        elif kind is _VAR_KEYWORD:
            text = f"**{arg}"
        elif kind is _KEYWORD_ONLY and not has_star:
            parameters.append("*")
            has_star = True
        if defaulted:
            default_names.append(free(f"default_{arg}"))
            text = f"{text}={default_names[-1]}"
        parameters.append(text)
        values.append(arg)
        if kind is _POSITIONAL_ONLY and kinds[i + 1 : i + 2] != (_POSITIONAL_ONLY,):
            parameters.append("/")
    if with_fun:
        values.insert(spec.fun_index(), fun)
    source = _TEMPLATE.format(
        variables=", ".join([dispatch, translate, fun, *default_names]),
        name=name,
        parameters=", ".join(parameters),
        values=", ".join(values),
        dispatch=dispatch,
        translate=translate,
        error=error,
    )
    namespace: dict[str, Any] = {}
    # A name below ours, so that JAX leaves fronts out of its tracebacks as well.
    exec(compile(source, f"{__file__}:front", "exec"), namespace)
    return namespace["make"], source


def make_front(
    spec: Spec,
    defaults: tuple[Any, ...],
    name: str,
    *,
    dispatch: Callable[..., Any],
    translate: Callable[[BaseException], BaseException | None],
    fun: Any = None,
    with_fun: bool = False,
) -> Callable[..., Any]:
    """A function that calls `dispatch` with one value per parameter of `spec`.

    **Arguments:**

    - `spec`, `defaults`: from `read_signature`.
    - `name`: what the front calls itself in a `TypeError` about its arguments.
    - `dispatch`: takes the values by position.
    - `translate`: is shown every exception and may return a better one.
    - `fun`, `with_fun`: a callable to pass along, at `spec.fun_index()`.

    **Returns:**

    The front. Its source is on its `__source__`.
    """
    if not _can_name_parameter(name):
        name = "call"  # e.g. `<lambda>`
    make, source = _front_maker(spec, with_fun, name)
    front = make(dispatch, translate, fun, *defaults)
    front.__source__ = source
    front.__wrapped__ = fun  # or the front alone would not keep it alive
    return front
