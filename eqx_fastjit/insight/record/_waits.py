"""What blocks: the lines at which Python waited for the device.

`float(x)`, `x.item()`, `print(x)`, `np.asarray(x)` and `block_until_ready` need the
value of an array, and wait until the device has it. In a loop, Python cannot prepare
the next step meanwhile. `_calls.py` sees who waits; here are the lines.
"""

import ast
import dataclasses
import functools
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from eqx_fastjit._facts import Place
from eqx_fastjit.insight._words import shortened

from ._samples import Position
from ._statements import expression_of, is_users_code


# What waits if a jitted call does not return before its result is ready.
JITTED_CALL = "a jitted call that blocks"


@dataclasses.dataclass
class Wait:
    """All waits of one expression in a line of source. Times are in seconds."""

    place: Place
    # The source of the expression, such as `float(loss)`; or the text above.
    what: str
    count: int = 0
    seconds: float = 0.0
    # How often it was evaluated, also if there was nothing to wait for.
    reads: int = 0
    # Whether the program cannot do without: the value is no single number with a
    # fraction, such as a loss, and so may decide what follows; or a call has a host
    # callback or large NumPy arrays, or is on several CPU devices.
    decides: bool = False
    # Seconds of all that was evaluated.
    all_seconds: float = 0.0


def wait_of(kind: str, args: Sequence[Any], why: str = "") -> Wait | None:
    """The expression that has waited in the running code, if it is in the program.

    `kind` and `args` are those of the function that has (`_private.hook_waits`); `why`
    is what the engine says of one of its calls.
    """
    # The innermost frame of the program itself, and the function that it called.
    frame, called = sys._getframe(1), ""
    while not is_users_code(frame.f_code):
        if frame.f_back is None:
            return None
        called, frame = frame.f_code.co_name, frame.f_back
    code = frame.f_code
    place = Place(code.co_filename, frame.f_lineno, code.co_qualname)
    what = _text_at(Position(code, frame.f_lasti))
    if kind == "blocks":
        # The program called `block_until_ready`, or a function that did.
        is_its_own = called in ("watched", "block_until_ready")
        what = what if is_its_own and not why else JITTED_CALL
        return Wait(place, what, decides=why in ("needed", "transfer"))
    x: Any = args[0]
    is_number = x.size == 1 and jax.numpy.issubdtype(x.dtype, np.inexact)
    return Wait(place, what, decides=not is_number)


@functools.lru_cache(maxsize=4096)
def _text_at(position: Position) -> str:
    """The source of the expression at a position, in one short line."""
    expression = expression_of(position)
    if expression is None:
        return "the value of an array"
    return shortened(ast.unparse(expression))
