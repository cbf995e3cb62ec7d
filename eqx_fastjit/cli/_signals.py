"""Reports while a program runs: on SIGUSR1, on a file, and before SIGTERM ends it.

Python runs the handler of a signal in the main thread, between two bytecodes: of a
program that compiles for minutes that is minutes later, and a batch system waits for
seconds only. So the signal wakes up a thread of ours, which writes the report at once.
"""

import _thread
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from eqx_fastjit._signals import handler_of


_INTERIM = tuple(filter(None, [getattr(signal, "SIGUSR1", None)]))
_FATAL = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
)
# Seconds between checks for the file.
_INTERVAL = 1.0
# Seconds that the main thread has to end the process once the report is written.
_GRACE = 2.0


class Reporter:
    """Writes a report when a signal or a file requests it.

    A program's own handlers take the place of these, and a signal that is ignored
    already stays so. Processes that the program forks are as without it.

    `write` is called with the exit code that the program will have, or with `None` for
    an interim report; in a thread of its own, while the program runs on. `file` asks
    for an interim report by being there, and is removed.
    """

    def __init__(self, write: Callable[[int | None], Any], file: str | None = None):
        self._write = write
        self._file = file
        self._handlers: dict[int, Any] = {}
        # Signals are written to one end, and read from the other.
        self._read, self._wake = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._wake, False)
        self._stopped = False
        self._written = threading.Event()
        self._fork = threading.local()
        self._writing = threading.Lock()
        self._alive = _thread.allocate_lock()
        self._pid = os.getpid()

    def start(self) -> None:
        """Start. This only works on POSIX, and in the main thread."""
        main = threading.current_thread() is threading.main_thread()
        if os.name != "posix" or not main:
            return
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for numbers, handler in ((_INTERIM, self._interim), (_FATAL, self._end)):
            for number in numbers:
                if signal.getsignal(number) == signal.SIG_DFL:
                    signal.signal(number, handler)
                    self._handlers[number] = handler
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork,
            after_in_child=self._in_child,
        )
        self._alive.acquire()
        _thread.start_new_thread(self._run, ())

    def stop(self) -> None:
        """Stop, after the last report has been written."""
        if self._stopped or os.getpid() != self._pid:
            return
        self._forget()
        self._ask(0)
        if self._alive.acquire(timeout=10.0):
            os.close(self._read)
            os.close(self._wake)

    def _forget(self) -> None:
        """Restore the signal handlers."""
        if self._stopped:
            return
        self._stopped = True
        if threading.current_thread() is not threading.main_thread():
            return  # a fork from another thread, in which there are no handlers to set
        known = signal.set_wakeup_fd(-1)
        if known != self._wake:  # the program's own
            signal.set_wakeup_fd(known)
        for number in self._handlers:
            if self._is_ours(number):
                signal.signal(number, signal.SIG_DFL)

    # A signal that reaches a new process before it has forgotten this one's handlers
    # would be taken for one that the parent was sent: both have one pipe.

    def _before_fork(self) -> None:
        if not self._stopped:
            self._fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._handlers)

    def _after_fork(self) -> None:
        mask = getattr(self._fork, "mask", None)
        if mask is not None:
            self._fork.mask = None
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _in_child(self) -> None:
        self._forget()
        self._after_fork()

    def write(self, code: int | None) -> Any:
        """Write a report, one at a time; returns what `write` does."""
        # The main thread may hold it, and be interrupted by what asks for a report.
        locked = self._writing.acquire(timeout=5.0)
        try:
            return self._write(code)
        finally:
            if locked:
                self._writing.release()

    # --- in the main thread ---

    def _interim(self, number: int, frame: FrameType | None) -> None:
        # Has woken up the thread already, minutes ago perhaps, unless the program has
        # changed where to.
        known = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(known, warn_on_full_buffer=False)
        if known != self._wake:
            self._ask(number)

    def _end(self, number: int, frame: FrameType | None) -> NoReturn:
        self._ask(number)
        self._written.wait(60.0)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        raise SystemExit(128 + number)  # not reached

    def _ask(self, number: int) -> None:
        try:
            os.write(self._wake, bytes([number]))
        except OSError:  # asked for often enough
            pass

    # --- in the thread ---

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._wait()
        finally:
            self._alive.release()

    def _wait(self) -> None:
        timeout = None if self._file is None else _INTERVAL
        select.select([self._read], [], [], timeout)
        asked = self._asked()
        if self._stopped:
            return
        # Other signals arrive here as well: Ctrl-C, and those that the program handles.
        asked = {number for number in asked if self._is_ours(number)}
        for number in asked.intersection(_FATAL):
            self._finish(number)
        if asked or self._file_is_there():
            self._try(None)

    def _is_ours(self, number: int) -> bool:
        handler = self._handlers.get(number)
        return handler is not None and handler_of(number) == handler

    def _finish(self, number: int) -> NoReturn:
        self._try(128 + number)
        self._written.set()
        # The main thread ends the process by the signal itself, if it gets around to.
        threading.Event().wait(_GRACE)
        os._exit(128 + number)

    def _try(self, code: int | None) -> None:
        try:
            self.write(code)
        except Exception as e:
            sys.stderr.write(f"eqx-fastjit: no report: {type(e).__name__}: {e}\n")

    def _asked(self) -> set[int]:
        try:
            return set(os.read(self._read, 4096))
        except BlockingIOError:
            return set()

    def _file_is_there(self) -> bool:
        if self._file is None or not os.path.exists(self._file):
            return False
        try:
            os.remove(self._file)
        except OSError:
            self._file = None  # it would ask again and again
        return True
