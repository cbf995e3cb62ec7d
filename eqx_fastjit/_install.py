"""Replace Equinox's `filter_jit`, for programs that should not be edited."""

import contextlib
import functools
import sys
import threading
from collections.abc import Generator
from typing import Any

import equinox as eqx

from ._jit import filter_jit
from ._options import make_options


equinox_filter_jit = eqx.filter_jit


@functools.wraps(filter_jit)
def _blocking(*fun: Any, asynchronous: bool = False, **options: Any) -> Any:
    # Programs may rely on blocking: a loop that refills the buffer of a batch has wrong
    # results without it.
    return filter_jit(*fun, asynchronous=asynchronous, **options)


# What Equinox's modules have as `filter_jit`, by whether calls are to be asynchronous.
_CHOICES = {None: equinox_filter_jit, False: _blocking, True: filter_jit}

_lock = threading.Lock()
# What `install()` and each `installed()` that is open ask for. The last one counts.
_asked: dict[object, bool | None] = {}


def _ask(by: object, asynchronous: bool | None) -> None:
    """Have this in each loaded module of Equinox; `None` to ask no longer."""
    if asynchronous is not None:
        make_options("none", asynchronous, {})  # checks it
    with _lock:
        _asked.pop(by, None)
        if asynchronous is not None:
            _asked[by] = asynchronous
        last = _CHOICES[[None, *_asked.values()][-1]]
        known = _CHOICES.values()
        for name, module in list(sys.modules.items()):
            is_equinox = name.partition(".")[0] == "equinox"
            if is_equinox and getattr(module, "filter_jit", None) in known:
                module.__dict__["filter_jit"] = last


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
    _ask(install, asynchronous)


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
    _ask(this, asynchronous)
    try:
        yield
    finally:
        _ask(this, None)
