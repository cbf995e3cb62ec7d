"""What blocks: the lines at which Python waited for the device.

`float(x)`, `x.item()`, `print(x)`, `np.asarray(x)` and `block_until_ready` need the
value of an array, and wait until the device has it. In a loop, Python cannot prepare
the next step meanwhile. `_calls.py` sees who waits; here are the lines.
"""

import ast
import dataclasses
import functools
import os
import sys
from collections.abc import Sequence
from types import CodeType
from typing import Any

import equinox as eqx
import jax
import numpy as np

from eqx_fastjit._facts import is_written_by_user, Place
from eqx_fastjit.insight._words import shortened

from ._samples import Position, position_of
from ._statements import expression_of, statement_at, statement_of, users_frames


# What waits if a jitted call does not return before its result is ready.
JITTED_CALL = "a jitted call that blocks"


# How far out the frame is that called what waits: `_calls.py` has those in between.
_OWN_FRAMES = 3
# Whose calls block by themselves.
EQUINOX_JIT = os.path.join(os.path.dirname(eqx.__file__), "_jit.py")


@dataclasses.dataclass
class Wait:
    """All waits of one expression in a line of source. Times are in seconds."""

    place: Place
    # The source of the expression, such as `float(loss)`; or the text above.
    what: str
    # Whether it is only added to what decides nothing.
    is_only_added: bool = False
    count: int = 0
    seconds: float = 0.0
    # How often it was evaluated, also if there was nothing to wait for. (A call that
    # blocks only counts if it waited.)
    reads: int = 0
    # Whether the program cannot do without: its statement decides what follows, or the
    # value is not one number with a fraction, such as a loss, and so may; or a call has
    # a host callback or large NumPy arrays, or is on several CPU devices.
    decides: bool = False
    # Seconds of all that was evaluated.
    all_seconds: float = 0.0
    # Seconds by which the device had its next work later.
    ahead: float = 0.0


class Waits:
    """All waits of a program."""

    def __init__(self) -> None:
        # By place and text.
        self.found: dict[tuple[Place, str], Wait] = {}
        # By the instruction that waited, and how. With its code, as another one could
        # have the `id` of one that is gone. (To hash a code takes long.)
        # And whether its function returns what it reads.
        self._known: dict[object, tuple[CodeType, Wait, bool]] = {}

    def by_seconds(self) -> list[Wait]:
        """The waits there were, the longest first."""
        there = (x for x in self.found.values() if x.reads)
        return sorted(there, key=lambda x: -x.seconds)

    def of(self, kind: str, args: Sequence[Any], why: str = "") -> Wait | None:
        """That of the expression in the running code, if that is in the program.

        `kind` and `args` are those of the function that waits
        (`_private.hook_waits`); `why` is what the engine says of one of its calls.
        """
        # The innermost frame of the program itself.
        frame, is_in_equinox = sys._getframe(_OWN_FRAMES), False
        while not is_written_by_user(frame.f_code):
            if frame.f_back is None:
                return None
            is_in_equinox |= frame.f_code.co_filename == EQUINOX_JIT
            frame = frame.f_back

        code, instruction = frame.f_code, frame.f_lasti
        is_call = kind == "blocks" and (bool(why) or is_in_equinox)
        key = id(code), instruction, is_call
        if key not in self._known:
            what = JITTED_CALL if is_call else _text_at(position_of(code, instruction))
            place = Place(code.co_filename, frame.f_lineno, code.co_qualname)
            statement = statement_at(place)
            # A call has several instructions: Python 3.11 is at another one later.
            new = Wait(place, what, statement.only_adds, decides=statement.decides)
            known = self.found.setdefault((place, what), new)
            self._known[key] = code, known, statement.is_returned
        _, wait, is_returned = self._known[key]
        # Of several callers, one may need it.
        if is_returned and not wait.decides:
            caller = next(users_frames(frame.f_back), None)
            if caller is not None:
                at = position_of(caller.f_code, caller.f_lasti)
                wait.decides = statement_of(at).decides
        if kind != "blocks" and not wait.is_only_added:
            wait.decides |= not (args[0].size == 1 and _has_fractions(args[0].dtype))
        return wait


@functools.cache
def _has_fractions(dtype: Any) -> bool:
    return jax.numpy.issubdtype(dtype, np.inexact)


def _text_at(position: Position) -> str:
    """The source of the expression at a position, in one short line."""
    expression = expression_of(position)
    if expression is None:
        return "the value of an array"
    return shortened(ast.unparse(expression))
