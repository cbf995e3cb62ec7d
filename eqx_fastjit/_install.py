"""Replace Equinox's `filter_jit`, for programs that should not be edited."""

import contextlib
import functools
import sys
import weakref
from collections.abc import Generator
from typing import Any

import equinox as eqx

from ._jit import filter_jit
from ._options import make_options


equinox_filter_jit = eqx.filter_jit


@functools.wraps(filter_jit)
def _blocking(*fun: Any, asynchronous: bool = False, **options: Any) -> Any:
    # As `filter_jit`, but by default it blocks, as Equinox's does: a loop that refills
    # the buffer of a batch has wrong results otherwise.
    if not fun and "fun" not in options:  # a decorator with options
        return functools.partial(_blocking, asynchronous=asynchronous, **options)
    wrapped = filter_jit(*fun, asynchronous=asynchronous, **options)
    _blocking_functions.add(wrapped._function)  # pyright: ignore
    return wrapped


# What it has made, for the doctor: such programs may import `filter_jit` from here.
_blocking_functions: weakref.WeakSet[Any] = weakref.WeakSet()


def is_of_equinox(function: Any) -> bool:
    """Whether a `Function` was made by Equinox's name, which `install()` replaced."""
    return function in _blocking_functions


# What Equinox's modules have as `filter_jit`: their own, `filter_jit` or `_blocking`.
_installed: Any = equinox_filter_jit


def _replace_with(choice: Any) -> None:
    """Replace what is installed in each loaded module of Equinox."""
    global _installed

    for name, module in list(sys.modules.items()):
        package, _, _ = name.partition(".")
        if package != "equinox":
            continue
        if getattr(module, "filter_jit", None) is _installed:
            module.filter_jit = choice  # pyright: ignore
    _installed = choice


def install(*, asynchronous: bool = False) -> None:
    """Replace `equinox.filter_jit` in every loaded module of Equinox.

    Libraries that are imported afterwards use the replacement. Functions that are
    already wrapped are not affected. `uninstall()` restores Equinox's `filter_jit`.

    **Arguments:**

    - `asynchronous`: whether calls return before the device has finished, as with
        `jax.jit`. By default, a program may refill its buffers after each call, as
        with Equinox: on a CPU calls block, and on a GPU or TPU they wait until their
        arguments have arrived.

    Raises `TypeError` if `asynchronous` is not a bool.
    """
    make_options("none", asynchronous, {})  # checks the type
    _replace_with(filter_jit if asynchronous else _blocking)


def uninstall() -> None:
    """Restore Equinox's own `filter_jit`, if `install()` has replaced it."""
    _replace_with(equinox_filter_jit)


@contextlib.contextmanager
def installed(*, asynchronous: bool = False) -> Generator[None, None, None]:
    """A context manager that calls `install()`, and restores on exit what was there.

    **Arguments:** those of `install`.
    """
    before = _installed
    install(asynchronous=asynchronous)
    try:
        yield
    finally:
        _replace_with(before)
