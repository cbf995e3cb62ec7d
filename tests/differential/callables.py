"""Callables of many kinds, and what they compute."""

import dataclasses
import functools as ft
import inspect
import typing
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .values import (
    Array,
    Config,
    Description,
    is_array,
    P,
    parts,
    show,
    Static,
    Tree,
)


class Fails(Exception):
    """Raised by a function while it is traced."""


# --- what is computed ----------------------------------------------------------------


def _on_array(x: Any) -> Any:
    dtype = x.dtype
    if dtype == jax.dtypes.float0 or jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return x
    return ~x if jnp.issubdtype(dtype, bool) else x + x


def _doubled(tree: Any) -> Any:
    return jtu.tree_map(lambda x: _on_array(x) if is_array(x) else x, tree)


def _numbers(tree: Any) -> list[Any]:
    """The arrays of a tree that support arithmetic."""
    kinds = (jnp.floating, jnp.integer)
    arrays = [x for x in jtu.tree_leaves(tree) if is_array(x)]
    return [x for x in arrays if any(jnp.issubdtype(x.dtype, k) for k in kinds)]


def _static_leaves(tree: Any) -> list[Any]:
    return [x for x in jtu.tree_leaves(tree) if not is_array(x)]


def _static_parts(x: Any) -> list[Any]:
    """All statics, including those in fields."""
    named = None if is_array(x) else parts(x)
    if named is None:
        return [] if is_array(x) else [x]
    return [static for _, part in named for static in _static_parts(part)]


def _restructure(tree: Any, jit: Any) -> Any:
    leaves = jtu.tree_leaves(tree)[::-1]
    return {
        "all": tuple([_on_array(x) if is_array(x) else x for x in leaves]),
        "some": [P(x, None) for x in leaves[:2]],
        "module": eqx.Partial(print, *leaves[:1], k=(1.0, -0.0, True)),
        "config": Config(len(leaves)),
    }


def _reduce(tree: Any, jit: Any) -> Any:
    return sum([jnp.sum(x.astype("float32")) for x in _numbers(tree)], jnp.float32(0))


_WEIGHTS = {bool: 2, int: 3, float: 5, complex: 7, str: 11, bytes: 13}


def _by_type(tree: Any, jit: Any) -> Any:
    """Computes with the types of the statics."""
    weight = sum([_WEIGHTS.get(type(x), 17) for x in _static_parts(tree)])
    return [x * jnp.asarray(weight).astype(x.dtype) for x in _numbers(tree)]


def _raise(tree: Any, jit: Any) -> Any:
    """Raises for some types of statics."""
    types = {type(x) for x in _static_parts(tree)}
    if bool in types:
        raise Fails("a bool")
    if float in types:
        raise KeyError("a float")
    return _doubled(tree)


def _bool_of_array(tree: Any, jit: Any) -> Any:
    numbers = _numbers(tree)
    if numbers and jnp.sum(numbers[0]) >= 0:
        return numbers[0]
    return tree


def _nested(tree: Any, jit: Any) -> Any:
    # New functions in each trace. If sequences shared them, Equinox would reuse a trace
    # for an equal static, such as 0.0 for -0.0. (One of the listed differences.)
    echo = jit(lambda *args, **kwargs: (args, kwargs))
    return jit(lambda tree: _doubled(tree))(tree), echo(1, n=tree)


def _check(tree: Any, jit: Any) -> Any:
    numbers = [x for x in _numbers(tree) if x.size]
    if not numbers:
        return tree
    x = numbers[0]
    return eqx.error_if(x, jnp.any(x == 3), "there is a three"), tree


BEHAVIOURS: dict[str, Callable[[Any, Any], Any]] = {
    "echo": lambda tree, jit: tree,
    "double": lambda tree, jit: _doubled(tree),
    "restructure": _restructure,
    "reduce": _reduce,
    "by type": _by_type,
    "statics": lambda tree, jit: (_static_leaves(tree), 1, "s", None, -0.0, Config(1)),
    "nothing": lambda tree, jit: None,
    "raise": _raise,
    "bool of array": _bool_of_array,
    "nested": _nested,
    "check": _check,
}


# --- parameters ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Parameters:
    """A parameter list. `defaults` maps a name to the description of its default."""

    source: str
    # All named parameters, including `positional_only` and `keyword_only`.
    names: tuple[str, ...]
    positional_only: tuple[str, ...] = ()
    keyword_only: tuple[str, ...] = ()
    defaults: tuple[tuple[str, Description], ...] = ()
    var_positional: str | None = None
    var_keyword: str | None = None

    def default(self, name: str) -> Description | None:
        return dict(self.defaults).get(name)


_PAIR = Tree("tuple", (Static("1"), Static("'a'")))

PARAMETERS: dict[str, Parameters] = {
    "a, b": Parameters("a, b", ("a", "b")),
    "a, b=2, *, c='a'": Parameters(
        "a, b=d['b'], *, c=d['c']",
        ("a", "b", "c"),
        keyword_only=("c",),
        defaults=(("b", Static("2")), ("c", Static("'a'"))),
    ),
    "*args, **kwargs": Parameters(
        "*args, **kwargs", (), var_positional="args", var_keyword="kwargs"
    ),
    "a, /, b=0.0, *args, c=None, **kwargs": Parameters(
        "a, /, b=d['b'], *args, c=d['c'], **kwargs",
        ("a", "b", "c"),
        positional_only=("a",),
        keyword_only=("c",),
        defaults=(("b", Static("0.0")), ("c", Tree("none", ()))),
        var_positional="args",
        var_keyword="kwargs",
    ),
    "a, b=(1, 'a'), c=nan": Parameters(
        "a, b=d['b'], c=d['c']",
        ("a", "b", "c"),
        defaults=(("b", _PAIR), ("c", Static("nan"))),
    ),
    "a, b=array": Parameters(
        "a, b=d['b']",
        ("a", "b"),
        defaults=(("b", Array("jax", "float32", (), False, 2)),),
    ),
}


def make(description: Description) -> Any:
    """An argument that shares no parts unless its description says so."""
    return description.make(make)


def _function(
    parameters: Parameters, core: Callable[[dict[str, Any]], Any], self: str = ""
) -> Callable[..., Any]:
    """A function with these parameters, which passes them to `core` by name."""
    names = [*parameters.names, parameters.var_positional, parameters.var_keyword]
    bundle = ", ".join([f"{n!r}: {n}" for n in names if n] + ["**extra"] * bool(self))
    extra = f"    extra = {{'w': {self}.w}}\n" if self else ""
    source = ", ".join([self] * bool(self) + [parameters.source])
    namespace = {"core": core, "d": {n: make(d) for n, d in parameters.defaults}}
    exec(f"def f({source}):\n{extra}    return core({{{bundle}}})\n", namespace)
    return namespace["f"]


@ft.cache
def signature(parameters: Parameters) -> inspect.Signature:
    return inspect.signature(_function(parameters, lambda bundle: None))


# --- kinds of callables --------------------------------------------------------------


class Made(typing.NamedTuple):
    """A callable to test.

    `get` takes a description of the callable's own data (for kinds in `WITH_DATA`) and
    a function that creates arguments from descriptions. It returns the callable.
    """

    get: Callable[[Description | None, Callable[[Description], Any]], Any]


# Callables with data of their own, which is part of the call.
WITH_DATA = ("module", "bound", "jitted method", "eqx.Partial", "jtu.Partial")
# Kinds for which an omitted default and the same value passed are one call. (Not those
# with a signature that may differ from the function's own.)
SHARE_DEFAULTS = ("function", "lambda", "again", "module", "jitted method", "object")
# Kinds that accept `*args, **kwargs`, whatever function they wrap.
RAW = ("eqx.Partial", "jtu.Partial", "partial")
KINDS = (*WITH_DATA, "function", "lambda", "again", "object", "wraps", "partial")


def make_callable(
    kind: str,
    parameters: Parameters,
    behaviour: str,
    jit: Callable[..., Any],
    donate: str,
    traced: Callable[[], None],
) -> Made:
    """A callable, jitted by `jit`, that calls `traced` whenever its body runs."""

    def core(bundle: dict[str, Any]) -> Any:
        traced()
        return {
            "seen": show(bundle),
            "out": BEHAVIOURS[behaviour](bundle, jit),
        }

    wrap = ft.partial(jit, donate=donate)
    if kind in ("module", "bound", "jitted method"):
        f = _function(parameters, core, "self")
        name = "__call__" if kind == "module" else "go"
        namespace = {
            "__annotations__": {"w": Any},
            name: wrap(f) if kind == "jitted method" else f,
        }
        cls: Any = type("Callable", (eqx.Module,), namespace)
        if kind == "module":
            return Made(lambda data, make: wrap(cls(make(data))))
        if kind == "bound":
            return Made(lambda data, make: wrap(cls(make(data)).go))
        return Made(lambda data, make: cls(make(data)).go)
    if kind.endswith(".Partial"):
        partial = eqx.Partial if kind == "eqx.Partial" else jtu.Partial
        f = _with_first(_function(parameters, core), core)
        return Made(lambda data, make: wrap(partial(f, make(data))))
    f = _function(parameters, core)
    if kind == "lambda":
        f.__name__ = f.__qualname__ = "<lambda>"
    elif kind == "object":
        f = type("Object", (), {"__call__": _function(parameters, core, "self")})
        f.w = None
        f = f()
    elif kind == "wraps":
        f = _decorated(f)
    elif kind == "partial":
        f = ft.partial(_with_first(f, core), -0.0)
    if kind == "again":
        return Made(lambda data, make: wrap(f))
    wrapped = wrap(f)
    return Made(lambda data, make: wrapped)


def _decorated(f: Any) -> Any:
    @ft.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return f(*args, **kwargs)

    return wrapper


def _with_first(f: Any, core: Any) -> Any:
    """`f` with an additional first parameter, for a `Partial` to fill."""

    def with_first(first: Any, /, *args: Any, **kwargs: Any) -> Any:
        out = f(*args, **kwargs)
        return {**out, "first": _doubled(first), "seen first": show(first)}

    return with_first


def not_jitted(fun: Any = None, **_: Any) -> Any:
    """Replaces `filter_jit` for the plain function."""
    return fun
