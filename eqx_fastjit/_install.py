"""Replace Equinox's `filter_jit`, for programs that should not be edited."""

import contextlib
import functools
import sys
import threading
from collections.abc import Generator
from typing import Any

import equinox as eqx

from ._jit import filter_jit


_NAME = "filter_jit"
_lock = threading.Lock()
_equinox_filter_jit = eqx.filter_jit


@functools.wraps(filter_jit)
def _blocking_filter_jit(*args: Any, **kwargs: Any) -> Any:
    return filter_jit(*args, **{"asynchronous": False, **kwargs})


def _replace(new: Any) -> None:
    """In each loaded module of Equinox that has one of the three as its `filter_jit`."""
    known = (_equinox_filter_jit, filter_jit, _blocking_filter_jit)
    for name, module in list(sys.modules.items()):
        if name == "equinox" or name.startswith("equinox."):
            current = getattr(module, "__dict__", {}).get(_NAME)
            if any(current is x for x in known):
                setattr(module, _NAME, new)


def install(*, asynchronous: bool = False) -> None:
    """Replace `equinox.filter_jit` in every loaded module of Equinox.

    Libraries that are imported afterwards use `eqx_fastjit.filter_jit`. Functions that
    are already wrapped are not affected. `uninstall()` restores Equinox's own.

    **Arguments:**

    - `asynchronous`: whether calls return immediately, as with `jax.jit`. By default
        each call blocks until the device has finished, as with Equinox: nothing changes
        but the speed. A program that writes to a buffer while a call may still read it
        is only right if calls block.
    """
    if not isinstance(asynchronous, bool):
        raise TypeError(
            f"`install(asynchronous={asynchronous!r})`: expected True or False."
        )
    with _lock:
        _replace(filter_jit if asynchronous else _blocking_filter_jit)


def uninstall() -> None:
    """Restore Equinox's own `filter_jit`. Does nothing if it was not replaced."""
    with _lock:
        _replace(_equinox_filter_jit)


@contextlib.contextmanager
def installed(*, asynchronous: bool = False) -> Generator[None, None, None]:
    """A context manager that calls `install()`, and restores what was there on exit.

    **Arguments:**

    - `asynchronous`: as for `install`.
    """
    before = eqx.filter_jit
    install(asynchronous=asynchronous)
    try:
        yield
    finally:
        with _lock:
            _replace(before)
