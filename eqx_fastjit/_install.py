"""Putting `filter_jit` in the place of Equinox's, under programs nobody edits."""

import contextlib
import sys
import threading
from collections.abc import Generator, Iterator

import equinox as eqx

from ._jit import filter_jit


_NAME = "filter_jit"
_lock = threading.Lock()
equinox_filter_jit = eqx.filter_jit


def _equinox_modules(current: object) -> Iterator[object]:
    """The loaded modules of Equinox that have `current` as their `filter_jit`."""
    for name, module in list(sys.modules.items()):
        ours = name == "equinox" or name.startswith("equinox.")
        if ours and getattr(module, "__dict__", {}).get(_NAME) is current:
            yield module


def _replace(current: object, new: object) -> None:
    with _lock:
        for module in _equinox_modules(current):
            setattr(module, _NAME, new)


def install() -> None:
    """Replace `equinox.filter_jit` by ours, in every loaded module of Equinox.

    Libraries imported from now on use it; functions that are wrapped already stay as
    they are. Installing twice does nothing more. Undone by `uninstall()`.
    """
    _replace(equinox_filter_jit, filter_jit)


def uninstall() -> None:
    """Give Equinox its own `filter_jit` back. Does nothing if ours is not installed."""
    _replace(filter_jit, equinox_filter_jit)


@contextlib.contextmanager
def installed() -> Generator[None, None, None]:
    """Within this context, `equinox.filter_jit` is ours: `with installed(): ...`.

    If it was installed before, it stays so afterwards.
    """
    was_installed = eqx.filter_jit is filter_jit
    install()
    try:
        yield
    finally:
        if not was_installed:
            uninstall()
