"""Replace Equinox's `filter_jit`, for programs that should not be edited."""

import contextlib
import sys
import threading
from collections.abc import Generator

import equinox as eqx

from ._jit import filter_jit
from ._signals import listed


_NAME = "filter_jit"
_lock = threading.RLock()  # a signal handler may take it, too
equinox_filter_jit = eqx.filter_jit


def _replace(current: object, new: object) -> None:
    """In each loaded module of Equinox that has `current` as its `filter_jit`."""
    with _lock:
        for name, module in listed(sys.modules.items()):
            is_equinox = name == "equinox" or name.startswith("equinox.")
            if is_equinox and getattr(module, "__dict__", {}).get(_NAME) is current:
                setattr(module, _NAME, new)


def install() -> None:
    """Replace `equinox.filter_jit` in every loaded module of Equinox.

    Libraries that are imported afterwards use `eqx_fastjit.filter_jit`. Functions that
    are already wrapped are not affected. `uninstall()` restores Equinox's own.
    """
    _replace(equinox_filter_jit, filter_jit)


def uninstall() -> None:
    """Restore Equinox's own `filter_jit`. Does nothing if ours is not installed."""
    _replace(filter_jit, equinox_filter_jit)


class _Installed:
    """A use of `installed()` that has begun."""

    __slots__ = ("was_installed",)

    def __init__(self) -> None:
        self.was_installed = eqx.filter_jit is filter_jit


# In the order in which they began. Threads and tasks may end theirs in another one.
_begun: list[_Installed] = []


@contextlib.contextmanager
def installed() -> Generator[None, None, None]:
    """A context manager that calls `install()`, and undoes it on exit.

    If it was already installed, it stays installed; also by another thread that is
    still in such a context.
    """
    with _lock:
        this = _Installed()
        _begun.append(this)
        install()
    try:
        yield
    finally:
        with _lock:
            i = _begun.index(this)
            del _begun[i]
            if i < len(_begun):
                # What was there before is for the next one to restore.
                _begun[i].was_installed = this.was_installed
            elif not this.was_installed:
                uninstall()
