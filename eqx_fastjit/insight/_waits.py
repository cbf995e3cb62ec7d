"""What blocks: the lines at which Python waited for the device.

`float(x)`, `x.item()`, `print(x)`, `np.asarray(x)` and `block_until_ready` need the
value of an array, and wait until the device has it. In a loop, Python cannot prepare
the next step meanwhile. Nothing is watched until a `Waits` is entered.

Reading values less often saves what Python and the device would do at the same time: of
what the device computes, it saves nothing.
"""

import contextlib
import dataclasses
import functools
import itertools
import linecache
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType
from typing import Any, Self

import jax
import numpy as np

from eqx_fastjit._blocking import RESULTS
from eqx_fastjit._facts import is_written_by_user, Place
from eqx_fastjit._function import Function

from ._private import hook_waits
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


class _Here(threading.local):
    inside = False


_here = _Here()


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Waits in this context are none of the program's."""
    outer, _here.inside = _here.inside, True
    try:
        yield
    finally:
        _here.inside = outer


class Waits(contextlib.ExitStack):
    """Within this context, notes each wait of the program for the device."""

    def __init__(
        self,
        noticed: Callable[[float, float], None] = lambda seconds, ended: None,
    ) -> None:
        super().__init__()
        # Called after each wait that the program could do without.
        self._noticed = noticed
        # Functions that this version of JAX does not have: waits in them are missing.
        self.missing: list[str] = []
        self._found: dict[tuple[Place, str], Wait] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self.missing = hook_waits(self._timed, self)
        return self

    def found(self) -> list[Wait]:
        """The waits until now, the longest first."""
        with self._lock:
            return sorted(self._found.values(), key=lambda wait: -wait.seconds)

    def _timed(self, function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        clock = time.perf_counter

        def timed(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            others = kind == "numpy" and not (args and isinstance(args[0], jax.Array))
            if _here.inside or others:
                return function(*args, **kwargs)
            start = clock()
            try:
                with unseen():
                    return function(*args, **kwargs)
            finally:
                end = clock()
                if end - start >= _SHORTEST or kind != "blocks":
                    self._note(end - start, end, kind, args)

        with contextlib.suppress(TypeError):  # what nanobind makes has odd names
            functools.update_wrapper(timed, function)
        return timed

    def _note(
        self, seconds: float, ended: float, kind: str, args: Sequence[Any]
    ) -> None:
        # The innermost frame of the program itself, and the function that it called.
        frame, called, blocks = sys._getframe(1), "", JITTED_CALL
        while not _is_written_by_user(frame.f_code):
            if frame.f_back is None:
                return
            if frame.f_code is Function.complete_call.__code__:
                call = frame.f_locals  # by what the engine knows
                if call["reads_numpy"] or max(call["plan"].blocks, 0) & RESULTS:
                    blocks = HAS_TO_BLOCK
            called, frame = frame.f_code.co_name, frame.f_back
        code = frame.f_code
        place = Place(code.co_filename, frame.f_lineno, code.co_qualname)
        what = shortened(_expression_at(code, frame.f_lasti)) or "the value of an array"
        # The program called neither `block_until_ready` nor a function that did.
        if kind == "blocks" and called not in ("timed", "block_until_ready"):
            what = blocks
        has_waited = seconds >= _SHORTEST
        x: Any = args[0] if args else None
        is_single = getattr(x, "size", 0) == 1
        is_number = is_single and jax.numpy.issubdtype(x.dtype, np.inexact)
        decides = kind != "blocks" and not is_number
        with self._lock:
            wait = self._found.setdefault((place, what), Wait(place, what))
            wait.reads += 1
            wait.decides = decides
            wait.count += has_waited
            wait.seconds += has_waited * seconds
        if has_waited and what != HAS_TO_BLOCK and not decides:
            self._noticed(seconds, ended)


_is_written_by_user = functools.lru_cache(maxsize=4096)(is_written_by_user)


# --- the row --------------------------------------------------------------------------


def row_of_waits(waits: Iterable[Wait], saves: float) -> list[Row]:
    """What the program waits for without need, if it could save any seconds.

    A number that is read in each step may be read later. What is an index, a flag or a
    whole array may decide what comes next: then nothing is saved by not waiting.
    """
    found = [x for x in waits if x.what != HAS_TO_BLOCK and x.count and not x.decides]
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
