"""Every private name of JAX, jaxlib and Equinox that the engine uses, or that may move.

`insight/_private.py` and `_export/_private.py` have those of the tools and of files. No
other file may import from `jax._src`, `jaxlib` or `equinox._*` (the linter bans it).
Each name is looked up by `resolve`, or its class is asked for it beforehand. Where one
is not there, the caller gets `None` (or a stand-in) and does without. If there is no
doing without it, that is an error of the import, never of a call: so other files import
public names by themselves (`from jax import ...`) that only calls use.
"""

import contextlib
import functools
import inspect
import os
import pkgutil
import types
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np


# The single doorway to private names, `"package.module:attribute.attribute"`, so that a
# test can take each of them away in turn. It raises `ImportError` or `AttributeError`.
resolve = pkgutil.resolve_name


def try_resolve(path: str, default: Any = None) -> Any:
    """As `resolve`, or the default."""
    with contextlib.suppress(ImportError, AttributeError):
        return resolve(path)
    return default


# --- public names of JAX that may move ------------------------------------------------


Tracer: Any = try_resolve("jax.core:Tracer") or resolve("jax._src.core:Tracer")
flatten_one_level: Callable[[Any], Any] = resolve(
    "jax.tree_util:default_registry"
).flatten_one_level


config: Any = try_resolve("jax:config")


def is_jit_disabled() -> bool:
    """Whether this is under `jax.disable_jit()`."""
    return getattr(config, "jax_disable_jit", False)


@functools.cache  # its import takes a while
def jax_primitives() -> frozenset[Any]:
    """The primitives that JAX itself lowers, which only call what is in their jaxprs.

    Without them, each primitive may be anybody's.
    """
    cls: Any = try_resolve("jax.extend.core:Primitive", ())
    found: dict[str, Any] = try_resolve("jax.extend.core.primitives:__dict__", {})
    return frozenset(x for x in found.values() if isinstance(x, cls))


# --- JAX ------------------------------------------------------------------------------


# JAX's filtered tracebacks leave out the frames of this library.
try_resolve("jax._src.traceback_util:register_exclusion", id)(os.path.dirname(__file__))


@functools.cache
def _has_value(cls: type) -> bool:
    return issubclass(cls, (np.ndarray, np.generic, jax.Array, Tracer))


@functools.cache
def _slots_of(cls: type) -> tuple[str, ...]:
    """The names of a class's public slots, the most specific first."""
    names = [x for c in cls.__mro__ for x in vars(c).get("__slots__", ())]
    # (A property of such a name computes what it returns.)
    slots = [x for x in names if type(getattr(cls, x, 0)) is types.MemberDescriptorType]
    return tuple(x for x in slots if not x.startswith("_"))


def values_inside(x: Any) -> list[Any]:
    """The arrays inside a tracer of an eager transformation, such as `jax.grad`.

    The value comes first, then the tangent. An array, or a tracer of a trace that only
    records, is returned as it is.
    """
    if not isinstance(x, Tracer):
        return [x]
    inside: list[Any] = []
    # Whatever JAX calls them. (A tracer searches long for what it does not have.)
    more = vars(x) if type(x).__dictoffset__ else ()
    for name in (*_slots_of(type(x)), *more):
        part = getattr(x, name, None)
        if _has_value(type(part)):
            inside += values_inside(part)
    return inside or [x]


def equations_so_far(arguments: Sequence[Any]) -> list[Any] | None:
    """The equations of a function of these tracers, which is being traced.

    `None` if JAX keeps them elsewhere, or there are no arguments.
    """
    with contextlib.suppress(Exception):
        recorded = arguments[0]._trace.frame.tracing_eqns
        found = [x() if callable(x) else x for x in recorded]  # most by weak references
        return [x for x in found if x is not None]
    return None


# --- Equinox --------------------------------------------------------------------------


# The descriptor behind `module.__dict__`. Reading it directly skips
# `Module.__getattribute__`, which is a Python function.
INSTANCE_DICT: Any = inspect.getattr_static(eqx.Module, "__dict__")
instance_dict: Callable[[Any], dict[str, Any]] = INSTANCE_DICT.__get__


def last_error_info() -> tuple[str, list[bytes | str]]:
    """The message and trace-time stack of the last `eqx.error_if` that failed."""
    return try_resolve("equinox._jit:last_error_info") or ("", [])


def runtime_error_text(message: str, stack: str) -> str:
    """Equinox's text around the message and the stack of a runtime error."""
    text = try_resolve("equinox._jit:_on_error_msg")
    try:
        return text.format(msg=message, stack=stack)
    except Exception:  # it is not there, or has other fields
        return f"{stack}\n{message}"


def on_clear_caches(clear: Callable[[], None]) -> None:
    """Make `eqx.clear_caches()` call `clear` as well."""
    try_resolve("equinox._caches:cache_clears", []).append(clear)
