"""Signals at the wrong moment."""

import contextlib
import signal
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import jax


@contextlib.contextmanager
def held(numbers: Iterable[int]) -> Iterator[None]:
    """Have the handlers of these signals run afterwards, in the main thread.

    In any other thread this does nothing: Python runs no handlers there.
    """
    arrived: list[int] = []
    try:
        with contextlib.ExitStack() as stack:
            if threading.current_thread() is threading.main_thread():
                for number in numbers:
                    stack.callback(signal.signal, number, signal.getsignal(number))
                    signal.signal(number, lambda number, _: arrived.append(number))
            yield
    finally:
        for number in arrived:
            signal.raise_signal(number)


def _with_handlers() -> Iterator[int]:
    """The signals that run a function of the program."""
    for number in range(1, signal.NSIG):
        handler = signal.getsignal(number)
        if callable(handler) and handler is not signal.default_int_handler:
            yield number


def make_jit(fun: Any, **kwargs: Any) -> Any:
    """`jax.jit(fun, **kwargs)`, which no signal handler interrupts.

    JAX looks the function up in a table, holding a lock while it asks a key for its
    hash, which is Python: a handler that calls `jax.jit` there waits for ever.
    """
    with held(_with_handlers()):
        return jax.jit(fun, **kwargs)
