"""What a user passed to `inspect` or `profile`: a function, jitted or not."""

# Callables may be anything.
# pyright: reportAttributeAccessIssue=false, reportFunctionMemberAccess=false
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax

from eqx_fastjit._install import equinox_filter_jit
from eqx_fastjit._jit import filter_jit, JitWrapped


_JAX_JIT: Any = type(jax.jit(lambda: None))
_JITTED: Any = (JitWrapped, _JAX_JIT, type(equinox_filter_jit(lambda: None)))


class Target(NamedTuple):
    """A call of a function, as the user gave it."""

    name: str
    # Without jit.
    fun: Callable[..., Any]
    # The same under this library, or as it is if it is of `jax.jit`.
    jitted: Any
    # With those that a bound method puts before the others.
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def target(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Target:
    """The target of a call. Raises `TypeError` for what cannot be called."""
    if not callable(f):
        raise TypeError(f"expected a function, jitted or not; got a {type(f).__name__}")
    if isinstance(f, eqx.Partial | functools.partial):  # or a bound method
        f, args, kwargs = f.func, (*f.args, *args), {**f.keywords, **kwargs}
    elif hasattr(f, "__func__"):
        f, args = f.__func__, (f.__self__, *args)
    fun = f.__wrapped__ if isinstance(f, _JITTED) else f
    jitted = f if isinstance(f, JitWrapped | _JAX_JIT) else filter_jit(fun)
    name = getattr(fun, "__name__", type(fun).__name__)
    return Target(str(name), fun, jitted, args, kwargs)
