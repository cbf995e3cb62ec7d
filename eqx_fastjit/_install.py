"""Replace Equinox's `filter_jit`, for programs that should not be edited."""

import contextlib
import functools
import sys
import weakref
from collections.abc import Generator
from typing import Any

import equinox as eqx

from ._jit import filter_jit, MISSING
from ._options import Donate, make_options


equinox_filter_jit = eqx.filter_jit
# Each `Function` that was made by Equinox's name, which `install()` has replaced; also
# one that was made by this library's name as well. The doctor tells a program that has
# some to import `filter_jit` from here.
of_equinox: weakref.WeakSet[Any] = weakref.WeakSet()


@functools.cache
def _replacement(default: bool) -> Any:
    """What Equinox's name stands for, by its default of `asynchronous`.

    Without, calls block, as Equinox's do: a loop that refills the buffer of a batch has
    wrong results otherwise.
    """

    def jit(
        fun: Any = MISSING,
        *,
        donate: Donate = "none",
        asynchronous: bool = default,
        **jitkwargs: Any,
    ) -> Any:
        jitkwargs |= {"donate": donate, "asynchronous": asynchronous}
        if fun is MISSING:  # a decorator with options
            return functools.partial(jit, **jitkwargs)
        wrapped = filter_jit(fun, **jitkwargs)
        of_equinox.add(wrapped._function)  # pyright: ignore
        return wrapped

    functools.update_wrapper(jit, filter_jit)
    del jit.__wrapped__  # pyright: ignore  # whose signature has another default
    return jit


# What Equinox's modules have as `filter_jit`: their own, or a replacement.
_installed: Any = equinox_filter_jit


def _replace_with(choice: Any) -> None:
    """Replace what is installed in each loaded module of Equinox."""
    global _installed

    for name, module in list(sys.modules.items()):
        is_of_equinox = name.split(".")[0] == "equinox"
        if is_of_equinox and getattr(module, "filter_jit", None) is _installed:
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
    _replace_with(_replacement(asynchronous))


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
