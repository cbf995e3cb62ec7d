"""Replace Equinox's `filter_jit`, for programs that should not be edited."""

import contextlib
import sys
import threading
from collections.abc import Generator
from typing import Any

import equinox as eqx

from . import _jit
from ._options import check_asynchronous, Donate


_NAME = "filter_jit"
_lock = threading.RLock()
equinox_filter_jit = eqx.filter_jit


def filter_jit(
    fun: Any = _jit.MISSING,
    *,
    donate: Donate = "none",
    asynchronous: bool = False,
    **jitkwargs: Any,
) -> Any:
    """`eqx_fastjit.filter_jit`, with calls that block as Equinox's do.

    It is what `install()` puts in place of Equinox's. Programs may rely on blocking: a
    loop that refills the buffer of a batch has wrong results without it.
    """
    jitkwargs["asynchronous"] = asynchronous
    return _jit.filter_jit(fun, donate=donate, **jitkwargs)


_OURS = (filter_jit, _jit.filter_jit)


def _replace(new: Any) -> None:
    """In each loaded module of Equinox that has its `filter_jit`, or one of ours."""
    known = (equinox_filter_jit, *_OURS)
    with _lock:
        for name, module in list(sys.modules.items()):
            is_equinox = name == "equinox" or name.startswith("equinox.")
            current = getattr(module, "__dict__", {}).get(_NAME)
            if is_equinox and any(current is x for x in known):
                setattr(module, _NAME, new)


def install(*, asynchronous: bool = False) -> None:
    """Replace `equinox.filter_jit` in every loaded module of Equinox.

    Libraries that are imported afterwards use that of this package. Functions that are
    already wrapped are not affected. `uninstall()` restores Equinox's own.

    **Arguments:**

    - `asynchronous`: whether calls return before the device has finished, as with
        `jax.jit`. By default they block, as with Equinox: a program that refills the
        buffer of a batch relies on it.

    Raises `TypeError` if `asynchronous` is not a bool.
    """
    check_asynchronous("install", asynchronous)
    _replace(_jit.filter_jit if asynchronous else filter_jit)


def uninstall() -> None:
    """Restore Equinox's own `filter_jit`. Does nothing if ours is not installed."""
    _replace(equinox_filter_jit)


class _Installed:
    """A use of `installed()` that has begun."""

    __slots__ = ("before",)

    def __init__(self) -> None:
        current: Any = eqx.filter_jit
        is_ours = any(current is x for x in _OURS)
        self.before = current if is_ours else equinox_filter_jit


# In the order in which they began. Threads and tasks may end theirs in another one.
_begun: list[_Installed] = []


@contextlib.contextmanager
def installed(*, asynchronous: bool = False) -> Generator[None, None, None]:
    """A context manager that calls `install()`, and undoes it on exit.

    If it was already installed, it stays installed; also by another thread that is
    still in such a context.

    **Arguments:** those of `install`.
    """
    check_asynchronous("installed", asynchronous)
    with _lock:
        this = _Installed()
        _begun.append(this)
        install(asynchronous=asynchronous)
    try:
        yield
    finally:
        with _lock:
            i = _begun.index(this)
            del _begun[i]
            if i < len(_begun):
                # What was there before is for the next one to restore.
                _begun[i].before = this.before
            elif eqx.filter_jit is not equinox_filter_jit:  # not uninstalled since
                _replace(this.before)
