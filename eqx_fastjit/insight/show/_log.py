"""`EQX_FASTJIT_LOG`: a line for each compilation as it happens, or an event file.

Lines are written by the logger "eqx_fastjit". What takes long has one while it is being
compiled, as under the doctor.
"""

import atexit
import collections
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from eqx_fastjit import _facts
from eqx_fastjit.insight._words import listed, show_chain, show_seconds
from eqx_fastjit.insight.record._events import Event, watch
from eqx_fastjit.insight.record._file import Writer
from eqx_fastjit.insight.record._why import stages_of, title_of

from ._reasons import AGAIN, CELL, FIRST, OUTSIDE, reason_of


logger = logging.getLogger("eqx_fastjit")

_VARIABLE = "EQX_FASTJIT_LOG"
# Events that later ones are compared with.
_seen: collections.deque[Event] = collections.deque(maxlen=1000)
# Seconds after which it is said what is still being compiled, once for each function;
# and how often that is looked for.
_LATE, _INTERVAL = 30.0, 1.0


def log_from_environment() -> None:
    """Start logging as `EQX_FASTJIT_LOG` says. Raises `ValueError` if it is invalid."""
    text = os.environ.get(_VARIABLE, "")
    if text.endswith(".jsonl"):
        try:
            Writer(text)
        except OSError as e:
            raise ValueError(f"{_VARIABLE}={text!r} cannot be written: {e}") from None
    elif text == "compiles":
        handler = logging.StreamHandler()  # to stderr
        line = "[%(asctime)s eqx_fastjit] %(message)s"
        handler.setFormatter(logging.Formatter(line, "%H:%M:%S"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False  # to a handler of the program that writes them again
        watch(_on_event)
        say_what_is_late(logger.info)
    elif text not in ("", "off", "0"):
        expected = "expected compiles, off, or a file that ends in .jsonl."
        raise ValueError(f"{_VARIABLE}={text!r}: {expected}")


def _on_event(event: Event) -> None:
    if event.failed or event.compile:
        # What `jax.jit` compiles is not in the history of this library.
        _seen.append(event)
        logger.info("%s", log_line(event, _seen))


def log_line(event: Event, earlier: Iterable[Event] = ()) -> str:
    """A compilation in a line."""
    name = title_of(event.function)
    reason = reason_of(event, earlier)
    if event.failed:
        text = f"tracing {name} ended after {show_seconds(event.trace)}"
    else:
        if reason.cause == AGAIN:
            name = f"the same program of {name}"
        again = "" if reason.cause in (FIRST, CELL, OUTSIDE) else " again"
        ahead = " ahead of time" if event.ahead else ""
        stages = [f"{k} {show_seconds(x)}" for k, x in stages_of(event).items() if x]
        if event.cached:
            stages.append("read from the persistent cache")
        cost = f"{show_seconds(event.seconds)} ({', '.join(stages)})"
        text = f"compiled {name}{again}{ahead} in {cost}"
    why = listed(reason.texts, 3) or reason.cause
    return f"{text}, called at {show_chain(event.frames)}: {why}"


def say_what_is_late(say: Callable[[str], None]) -> Callable[[], None]:
    """From now on, say what has been compiling for long: it may hang.

    **Returns:** a function that ends this.
    """
    over, said = threading.Event(), set[Any]()

    def look() -> None:
        while not over.wait(_INTERVAL):
            for now in [*_facts.compilations.values()]:
                function = now.outermost.function
                seconds = time.time() - now.outermost.started
                if seconds >= _LATE and function.key() not in said:
                    said.add(function.key())
                    took = show_seconds(round(seconds))
                    with contextlib.suppress(Exception):  # of the program's own stderr
                        say(f"still compiling {title_of(function)}, {took}")

    def stop() -> None:
        over.set()
        thread.join(timeout=1.0)
        atexit.unregister(stop)

    thread = threading.Thread(target=look, name=__name__, daemon=True)
    thread.start()
    # A thread that prints while Python ends would end it otherwise.
    atexit.register(stop)
    return stop
