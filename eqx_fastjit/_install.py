"""Replace Equinox's `filter_jit`, for programs that should not be edited."""

import contextlib
import sys
import threading
from collections.abc import Generator
from typing import Any

import equinox as eqx

from ._jit import filter_jit as asynchronous_filter_jit
from ._options import make_options


equinox_filter_jit = eqx.filter_jit


def filter_jit(*fun: Any, asynchronous: bool = False, **options: Any) -> Any:
    """`eqx_fastjit.filter_jit`, with calls that block as Equinox's do.

    It is what `install()` puts in place of Equinox's. Programs may rely on blocking: a
    loop that refills the buffer of a batch has wrong results without it.
    """
    return asynchronous_filter_jit(*fun, asynchronous=asynchronous, **options)


_lock = threading.Lock()
# What `install()` and each `installed()` that is open ask for. The last one counts.
_asked: dict[object, Any] = {}


def _ask(by: object, what: Any) -> None:
    """Have this in each loaded module of Equinox; `None` to ask no longer."""
    with _lock:
        _asked.pop(by, None)
        if what is not None:
            _asked[by] = what
        last = [equinox_filter_jit, *_asked.values()][-1]
        known = (equinox_filter_jit, filter_jit, asynchronous_filter_jit)
        for name, module in list(sys.modules.items()):
            is_equinox = name.partition(".")[0] == "equinox"
            if is_equinox and getattr(module, "filter_jit", None) in known:
                module.__dict__["filter_jit"] = last


def _chosen(asynchronous: bool) -> Any:
    make_options("none", asynchronous, {})  # checks it
    return asynchronous_filter_jit if asynchronous else filter_jit


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
    _ask(install, _chosen(asynchronous))


def uninstall() -> None:
    """Restore Equinox's own `filter_jit`, if `install()` has replaced it."""
    _ask(install, None)


@contextlib.contextmanager
def installed(*, asynchronous: bool = False) -> Generator[None, None, None]:
    """A context manager that calls `install()`, and undoes it on exit.

    On exit, `filter_jit` stays replaced if `install()` was called before, or if another
    context is still open, in any thread.

    **Arguments:** those of `install`.
    """
    this = object()
    _ask(this, _chosen(asynchronous))
    try:
        yield
    finally:
        _ask(this, None)
