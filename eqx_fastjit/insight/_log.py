"""`EQX_FASTJIT_LOG`: a line for each compilation as it happens, or an event file.

Lines are written by the logger "eqx_fastjit". Each says which function was compiled, by
which line of the program, why, which leaf was not as before, and how long it took.
"""

import logging
import os

from eqx_fastjit import _events
from eqx_fastjit._events import Event

from ._file import Writer
from ._records import Record, record_of, show_difference
from ._words import listed, show_chain, show_place, show_seconds


logger = logging.getLogger("eqx_fastjit")

_VARIABLE = "EQX_FASTJIT_LOG"
# Differences that are shown in a line.
_SHOWN = 3
# An operation outside of jit takes some 20 ms, and there are dozens of them. In
# seconds, the time above which one has its own line.
_LONG_OPERATION = 0.5


def log_from_environment() -> None:
    """Start logging as `EQX_FASTJIT_LOG` says. Raises `ValueError` if it is invalid."""
    text = os.environ.get(_VARIABLE, "")
    if text in ("", "off", "0"):
        return
    if text.endswith(".jsonl"):
        try:
            Writer(text).start()
        except OSError as e:
            why = e.strerror or e
            raise ValueError(f"{_VARIABLE}={text!r} cannot be written: {why}") from None
        return
    if text != "compiles":
        raise ValueError(
            f"{_VARIABLE}={text!r}: expected compiles, off, or a file that ends in "
            ".jsonl."
        )
    handler = logging.StreamHandler()  # to stderr
    line = "[%(asctime)s eqx_fastjit] %(message)s"
    handler.setFormatter(logging.Formatter(line, "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # to a handler of the program that writes them again
    _events.observers.append(_on_event)


def _on_event(event: Event) -> None:
    record = record_of(event)
    is_small = record.is_outside and record.seconds < _LONG_OPERATION
    if record.failed or (record.compile and not is_small):
        logger.info("%s", log_line(record))


def log_line(record: Record) -> str:
    """A compilation in a line."""
    name = record.function
    if record.place is not None:
        name += f" ({show_place(record.place)})"
    if record.failed:
        text = f"tracing {name} failed after {show_seconds(record.trace)}"
    else:
        again = "" if record.is_first or record.is_outside else " again"
        ahead = " ahead of time" if record.ahead else ""
        parts = [f"{k} {show_seconds(x)}" for k, x in record.stages.items() if x]
        parts += ["read from the persistent cache"] * record.cached
        cost = f"{show_seconds(record.seconds)} ({', '.join(parts)})"
        text = f"compiled {name}{again}{ahead} in {cost}"
    text += f", called at {show_chain(record.frames)}"
    found = listed(map(show_difference, record.differences), _SHOWN)
    return f"{text}: {record.why}" + (f": {found}" if found else "")
