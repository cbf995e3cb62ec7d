"""What blocks: the lines at which Python waited for the device.

`float(x)`, `x.item()`, `print(x)`, `np.asarray(x)` and `block_until_ready` need the
value of an array, and wait until the device has it. In a loop, Python cannot prepare
the next step meanwhile. Nothing is watched until a `Waits` is entered.

Reading values less often saves what Python and the device would do at the same time: of
what the device computes, it saves nothing.
"""

import dataclasses
import functools
import itertools
import linecache
import sys
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import Any

import jax
import numpy as np

from eqx_fastjit._blocking import RESULTS
from eqx_fastjit._facts import is_written_by_user, Place
from eqx_fastjit._function import Function

from ._rules import part_of, Row
from ._words import shortened, show_seconds


# What waits if a jitted call does not return before its result is ready. The first one
# waits in any case: it has a host callback or large NumPy arrays, or is on several CPU
# devices. The other one waits unless it is asynchronous.
HAS_TO_BLOCK = "a jitted call that has to block"
JITTED_CALL = "a jitted call that blocks"
# Shorter waits do not count: the device was done, and the value was only copied.
_SHORTEST = 50e-6


@dataclasses.dataclass
class Wait:
    """All waits of one expression in a line of source. Times are in seconds."""

    place: Place
    # The source of the expression, such as `float(loss)`; or one of those above.
    what: str
    count: int = 0
    seconds: float = 0.0
    # How often it was evaluated, also if there was nothing to wait for.
    reads: int = 0
    # Whether it is no single number with a fraction, such as a loss, and so may decide
    # what follows.
    decides: bool = False

    @property
    def is_needed(self) -> bool:
        """Whether the program cannot do without."""
        return self.decides or self.what == HAS_TO_BLOCK


def is_long(seconds: float) -> bool:
    """Whether it is a wait: else the device was done, and the value only copied."""
    return seconds >= _SHORTEST


def wait_of(kind: str, args: Sequence[Any]) -> Wait | None:
    """The expression that has waited in the running code, if it is in the program.

    `kind` and `args` are those of the function that has (`_private.hook_waits`).
    """
    # The innermost frame of the program itself, and the function that it called.
    frame, called, blocks = sys._getframe(1), "", JITTED_CALL
    while not _is_written_by_user(frame.f_code):
        if frame.f_back is None:
            return None
        if frame.f_code is Function.complete_call.__code__:
            call = frame.f_locals  # by what the engine knows
            if call["reads_numpy"] or max(call["plan"].blocks, 0) & RESULTS:
                blocks = HAS_TO_BLOCK
        called, frame = frame.f_code.co_name, frame.f_back
    code = frame.f_code
    what = shortened(_expression_at(code, frame.f_lasti)) or "the value of an array"
    # The program called neither `block_until_ready` nor a function that did.
    if kind == "blocks" and called not in ("watched", "block_until_ready"):
        what = blocks
    x: Any = args[0] if args else None
    is_single = getattr(x, "size", 0) == 1
    is_number = is_single and jax.numpy.issubdtype(x.dtype, np.inexact)
    place = Place(code.co_filename, frame.f_lineno, code.co_qualname)
    return Wait(place, what, decides=kind != "blocks" and not is_number)


_is_written_by_user = functools.lru_cache(maxsize=4096)(is_written_by_user)


# --- the row --------------------------------------------------------------------------


def row_of_waits(waits: Iterable[Wait], saves: float) -> list[Row]:
    """What the program waits for without need, if it could save any seconds.

    A number that is read in each step may be read later. What is an index, a flag or a
    whole array may decide what comes next: then nothing is saved by not waiting.
    """
    found = [x for x in waits if x.count and not x.is_needed]
    if not found or saves <= 0:
        return []
    first = max(found, key=lambda x: x.seconds)
    function, what, n = first.place.function, first.what, first.count
    beside = (x for x in waits if x.decides and x.place.function == function)
    if any(2 * x.reads > first.reads for x in beside):
        return []
    rule = "blocking-call" if what == JITTED_CALL else "waits"
    facts = {"path": what, "cost": f"{n} x {show_seconds(first.seconds / n)}"}
    part = part_of(rule, facts, path=what, count=n, saves=saves, gain=saves)
    name = function.rpartition("<locals>.")[2]
    seconds = sum(x.seconds for x in found)
    return [Row(name, (part,), first.place, seconds=seconds, saves=saves, about=True)]


@functools.lru_cache(maxsize=4096)
def _expression_at(code: CodeType, instruction: int) -> str:
    """The source of the expression that an instruction belongs to, in a line.

    Empty if it is not known.
    """
    positions = itertools.islice(code.co_positions(), instruction // 2, None)
    first, last, start, end = next(positions)
    if first is None or last is None:
        return ""
    # Columns count bytes.
    file = code.co_filename
    lines = [linecache.getline(file, n).encode() for n in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return " ".join(b"".join(lines).decode(errors="replace").split())
