"""What stands for this library where it cannot work with JAX or Equinox as they are.

A program that was not edited must go on whatever JAX is installed. So `filter_jit` is
Equinox's own then, with one warning. What only this library has is an error.
"""

import contextlib
import functools
import warnings
from importlib.metadata import version
from typing import Any

import equinox as eqx


class Misconfigured(ValueError):
    """A setting of this library is wrong, whatever the versions."""


def _filter_jit(*fun: Any, asynchronous: bool = True, **options: Any) -> Any:
    """`equinox.filter_jit`."""
    del asynchronous
    return eqx.filter_jit(*fun, **options)


def _install(*, asynchronous: bool = False) -> Any:
    """Nothing."""
    del asynchronous
    return contextlib.nullcontext()


_STAND_INS = {
    "engine": lambda: "equinox",
    "fast_filter_jit": _filter_jit,
    "filter_jit": _filter_jit,
    "install": _install,
    "installed": _install,
    "uninstall": _install,
}


@functools.cache
def _warn(cause: str) -> None:
    name = __name__.partition(".")[0]
    warnings.warn(
        f"{name} does not fit JAX {version('jax')} and Equinox "
        f"{version('equinox')}, so `filter_jit` is Equinox's own ({cause}). "
        f"`pip install --upgrade {name}` may help; if not, please report this.",
        stacklevel=4,
    )


def stand_in(name: str, error: Exception) -> Any:
    """What there is in place of a public name that cannot be imported.

    Raises `ImportError` if that is nothing.
    """
    if name not in _STAND_INS:
        raise ImportError(
            f"cannot import {name!r} from eqx_fastjit: {error}"
        ) from error
    _warn(str(error))
    return _STAND_INS[name]
