"""Replace Equinox's `filter_jit`, for programs that should not be edited."""

# The module `_jit` is private to this package, not to itself.
# pyright: reportPrivateUsage=false

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


# What is asked for: by default, by `install()`, and by each `installed()` that is open.
_asked: list[Any] = [equinox_filter_jit]


def _put_last() -> None:
    """Put the last one into each loaded module of Equinox that has a `filter_jit`."""
    known = (equinox_filter_jit, filter_jit, _jit.filter_jit)
    for name, module in list(sys.modules.items()):
        is_equinox = name == "equinox" or name.startswith("equinox.")
        current = getattr(module, "__dict__", {}).get(_NAME)
        if is_equinox and any(current is x for x in known):
            setattr(module, _NAME, _asked[-1])


def install(*, asynchronous: bool = False) -> None:
    """Replace `equinox.filter_jit` in every loaded module of Equinox.

    Libraries that are imported afterwards use the replacement. Functions that are
    already wrapped are not affected. `uninstall()` restores Equinox's `filter_jit`.

    **Arguments:**

    - `asynchronous`: whether calls return before the device has finished, as with
        `jax.jit`. By default they block, as with Equinox. Some programs rely on that,
        such as one that refills the buffer of a batch.

    Raises `TypeError` if `asynchronous` is not a bool.
    """
    check_asynchronous("install", asynchronous)
    with _lock:
        _asked[:] = [_jit.filter_jit if asynchronous else filter_jit]
        _put_last()


def uninstall() -> None:
    """Restore Equinox's own `filter_jit`, if `install()` has replaced it."""
    with _lock:
        _asked[:] = [equinox_filter_jit]
        _put_last()


@contextlib.contextmanager
def installed(*, asynchronous: bool = False) -> Generator[None, None, None]:
    """A context manager that calls `install()`, and undoes it on exit.

    On exit, `filter_jit` stays replaced if `install()` was called before, or if another
    context is still open, in any thread.

    **Arguments:** those of `install`.
    """
    check_asynchronous("installed", asynchronous)
    this = _jit.filter_jit if asynchronous else filter_jit
    with _lock:
        _asked.append(this)
        _put_last()
    try:
        yield
    finally:
        with _lock:
            # Not by its place: contexts of other threads may have begun since.
            if this in _asked[1:]:
                del _asked[max(i for i, x in enumerate(_asked) if x is this)]
            _put_last()
