"""Says what is still being compiled: a compilation that hangs says nothing else."""

import atexit
import contextlib
import threading
import time
from collections.abc import Callable

from eqx_fastjit import _facts

from ._why import title_of
from ._words import show_seconds


# Seconds after which something is said for the first time; each time it is twice that.
_LATE = 30.0
# How often it is looked for.
_INTERVAL = 1.0


class SaysWhatIsLate:
    """A thread that says what has not ended for long, until it is stopped."""

    def __init__(self, say: Callable[[str], None]):
        self._say = say
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=__name__, daemon=True)
        self._thread.start()
        # A thread that prints while Python ends would end it otherwise.
        atexit.register(self.stop)

    def stop(self) -> None:
        """Say nothing any more."""
        self._over.set()
        self._thread.join(timeout=1.0)
        atexit.unregister(self.stop)

    def _run(self) -> None:
        said: dict[int, float] = {}
        while not self._over.wait(_INTERVAL):
            for fact in list(_facts.pending.values()):
                seconds = time.time() - fact.started
                if seconds < said.get(fact.number, _LATE) or self._over.is_set():
                    continue
                said[fact.number] = 2 * seconds
                title, took = title_of(fact.function), show_seconds(round(seconds))
                with contextlib.suppress(Exception):  # of the program's own stderr
                    self._say(f"still compiling {title}, {took}")
