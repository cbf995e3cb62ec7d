"""Signals, and other threads, at the wrong moment."""

import contextlib
import signal
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar


_T = TypeVar("_T")

# The handlers of those that are held.
_held: dict[int, Any] = {}


def handler_of(number: int) -> Any:
    """The handler of a signal, also while it is held."""
    return _held.get(number) or signal.getsignal(number)


@contextlib.contextmanager
def held(numbers: Iterable[int]) -> Iterator[None]:
    """Have the handlers of these signals run afterwards, in the main thread.

    In any other thread this does nothing: Python runs no handlers there.
    """
    arrived: list[tuple[int, Any]] = []
    handlers: dict[int, Any] = {}
    try:
        with contextlib.ExitStack() as stack:
            if threading.current_thread() is threading.main_thread():
                for number in numbers:
                    handlers[number] = signal.getsignal(number)
                    if number not in _held:
                        _held[number] = handlers[number]
                        stack.callback(_held.pop, number)
                    stack.callback(signal.signal, number, handlers[number])
                    signal.signal(number, lambda *signaled: arrived.append(signaled))
            yield
    finally:
        for number, frame in arrived:
            if callable(handlers[number]):
                # Not raised again, which asyncio would take for a second one.
                handlers[number](number, frame)
            else:
                signal.raise_signal(number)


def listed(items: Iterable[_T]) -> list[_T]:
    """A list of what other threads, or finalizers, may add to in the meantime."""
    while True:
        try:
            return list(items)
        except RuntimeError:  # changed during the iteration
            pass


def with_handlers() -> Iterator[int]:
    """The signals that run a function of the program."""
    for number in range(1, signal.NSIG):
        handler = signal.getsignal(number)
        if callable(handler) and handler is not signal.default_int_handler:
            yield number
