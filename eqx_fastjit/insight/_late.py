"""Says what is still being compiled: a compilation that hangs says nothing else."""

import atexit
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from eqx_fastjit import _facts

from ._why import title_of
from ._words import show_seconds


# Seconds after which it is said, once for each function.
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
        said: set[Any] = set()
        while not self._over.wait(_INTERVAL):
            innermost = list(_facts.compilations.values())
            for fact in [x.outermost for x in innermost if x is not None]:
                seconds = time.time() - fact.started
                key = fact.function.key()
                if seconds < _LATE or key in said or self._over.is_set():
                    continue
                said.add(key)
                title, took = title_of(fact.function), show_seconds(round(seconds))
                with contextlib.suppress(Exception):  # of the program's own stderr
                    self._say(f"still compiling {title}, {took}")
