"""Where the main thread is, by line: what no compilation and no wait accounts for.

The C core interrupts the main thread a few hundred times a second, by a signal that
nobody uses. What has passed since the last time counts for the innermost line of the
program. What is spent on compiling, waiting and importing has rows of its own, and is
left out.
"""

import ast
import atexit
import collections
import contextlib
import dataclasses
import enum
import functools
import inspect
import itertools
import os
import signal
import threading
import time
import types
from types import CodeType, FrameType
from typing import Any

import jax

from eqx_fastjit import _facts
from eqx_fastjit._engine import engine_module
from eqx_fastjit._facts import is_written_by_user, Place

from ._equations import JAX
from ._loops import is_in_loop
from ._operations import is_maker
from ._source import expression_at
from ._waits import is_unseen
from ._words import shortened


# Between two ticks. No round number, as the steps of a program may be.
_MICROSECONDS = 3700
# Of a clock that JAX, Python and their like have no use for. Windows has none.
_SIGNAL: Any = getattr(signal, "SIGVTALRM", None)
_UNUSED = (signal.SIG_DFL, signal.SIG_IGN)
# The latest samples, which a compilation that ends may still have been spent in.
_RECENT = 4096
# The most functions that are told apart by their callers.
_MAX_FRAMES = 12
# What brings an array to the device, or back, and computes nothing.
_TRANSFERS = {"array", "asarray", "device_put", "device_get"}
# What reads a value, which no jitted function can.
_READS = {"item", "tolist", "__float__", "__int__", "__bool__", "__array__"}
_TOOLS = os.path.dirname(__file__)
_JITTED: Any = type(jax.jit(lambda: None))


@dataclasses.dataclass
class Spot:
    """An expression of the program, and the seconds that were spent in it."""

    place: Place
    # Its source.
    what: str
    # Whether it is an operation of JAX outside of jit, in a loop; or only brings an
    # array to the device, or back.
    is_operation: bool
    is_transfer: bool = False
    # The functions on the way to either that a loop calls, innermost first; and those
    # with a loop on the way.
    called: tuple[Place, ...] = ()
    looping: tuple[Place, ...] = ()
    seconds: float = 0.0


class Samples:
    """Counts seconds by line, from `start` to `stop`. Without the C core, none."""

    def __init__(self) -> None:
        # By code, instruction, and the functions that it called, the two ends of them.
        self._spots: dict[Any, Spot] = {}
        self._recent: collections.deque[Any] = collections.deque(maxlen=_RECENT)
        self._last = 0.0
        self._has_begun = False

    def start(self) -> bool:
        """Begin, in the main thread. Returns whether that is possible."""
        start = getattr(engine_module(), "start_ticks", None)
        is_main = threading.current_thread() is threading.main_thread()
        if start is None or _SIGNAL is None or not is_main:
            return False
        # A program that is woken up by signals would be, again and again.
        descriptor = signal.set_wakeup_fd(-1)
        if descriptor != -1:
            signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
            return False
        if signal.getsignal(_SIGNAL) not in _UNUSED:
            return False
        signal.signal(_SIGNAL, self._tick)
        signal.siginterrupt(_SIGNAL, False)
        self._last = time.time()
        start(_SIGNAL, _MICROSECONDS)
        atexit.register(self.stop)
        self._has_begun = True
        return True

    def stop(self) -> None:
        """Count no more."""
        if self._has_begun:
            self._has_begun = False
            engine_module().stop_ticks()
            # The last one may still come.
            signal.signal(_SIGNAL, signal.SIG_IGN)
            atexit.unregister(self.stop)

    def compiled(self, since: float) -> None:
        """All since a time, in seconds since the epoch, was a compilation."""
        while self._recent and self._recent[-1][0] >= since:
            _, seconds, spot = self._recent.pop()
            spot.seconds -= seconds

    def found(self) -> list[Spot]:
        """The lines until now, the most expensive first."""
        spots = [x for x in self._spots.values() if x.seconds > 0]
        return sorted(spots, key=lambda x: -x.seconds)

    def _tick(self, number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(Exception):  # what it interrupts must not end by it
            self._count(frame)

    def _count(self, frame: FrameType | None) -> None:
        now = time.time()
        seconds, self._last = now - self._last, now
        if is_unseen() or threading.get_ident() in _facts.pending:
            return
        stack: list[FrameType] = []
        n_inside = -1
        while frame is not None:
            whose = _whose(frame.f_code)
            if whose is _Whose.JAX:
                n_inside = -1  # what it calls is a part of the operation
            elif n_inside < 0 and whose is _Whose.USER:
                n_inside = len(stack)
            elif n_inside < 0 and whose is _Whose.TOOLS:
                return
            stack.append(frame)
            frame = frame.f_back
        if n_inside < 0:
            return
        inside, outside = stack[:n_inside], stack[n_inside:]
        # A model is called by what can be jitted.
        users = [x for x in outside if _whose(x.f_code) is _Whose.USER][:_MAX_FRAMES]
        named = (x for x in users if x.f_code.co_name != "__call__")
        own = next(named, outside[0])
        ends = (inside[0].f_code, inside[-1].f_code) if inside else None
        key = own.f_lasti, ends, *(x.f_code for x in users)
        spot = self._spots.get(key)
        if spot is None:
            spot = self._spots[key] = _spot(own, inside)
            if spot.is_operation or spot.is_transfer:
                looping = [_place(x) for x in users if _is_looping(x)]
                spot.called, spot.looping = _called_in_loops(users), tuple(looping)
        spot.seconds += seconds
        self._recent.append((now, seconds, spot))


class _Whose(enum.Enum):
    """Whose code it is."""

    USER = "user"
    JAX = "jax"
    TOOLS = "tools"
    OTHERS = "others"


@functools.lru_cache(maxsize=4096)
def _whose(code: CodeType) -> _Whose:
    file = code.co_filename
    if file.startswith(JAX[0]):
        return _Whose.JAX
    if file.startswith((_TOOLS, "<frozen importlib")):
        return _Whose.TOOLS
    # Methods of named tuples have no lines in the program.
    is_users = file != "<string>" and is_written_by_user(code)
    return _Whose.USER if is_users else _Whose.OTHERS


def _spot(frame: FrameType, inside: list[FrameType]) -> Spot:
    """What a frame of the program is doing, with the frames in it, innermost first."""
    code = frame.f_code
    text = expression_at(code, frame.f_lasti)
    files = [x.f_code.co_filename for x in inside]
    is_transfer = False
    if inside:
        # Otherwise it is the call of a jitted function.
        is_own = any(x.startswith(JAX[1]) for x in files)
        is_jax = any(x.startswith(JAX[0]) for x in files) and not is_own
        called = inside[-1].f_code.co_name
        is_transfer = is_jax and called in _TRANSFERS
        is_operation = is_jax and called not in _TRANSFERS | _READS
    else:
        is_operation = _is_of_jax(_callee(code, frame.f_globals, text))
    is_repeated = (is_operation or is_transfer) and _is_repeated(frame)
    return Spot(
        _place(frame),
        shortened(text),
        is_operation and is_repeated,
        is_transfer and is_repeated,
    )


def _place(frame: FrameType) -> Place:
    code = frame.f_code
    line: int | None = frame.f_lineno  # some instructions have none
    return Place(code.co_filename, line or code.co_firstlineno, code.co_qualname)


def _is_looping(frame: FrameType) -> bool:
    """Whether a loop of its own is under way, but one that yields to another."""
    is_generator = frame.f_code.co_flags & inspect.CO_GENERATOR
    is_own = is_in_loop(frame.f_code.co_filename, frame.f_lineno)
    return is_own and not is_generator


def _called_in_loops(frames: list[FrameType]) -> tuple[Place, ...]:
    """Those of some frames that a loop of their caller's calls."""
    return tuple(
        _place(x)
        for x, caller in itertools.pairwise(frames)
        if is_in_loop(caller.f_code.co_filename, caller.f_lineno)
        and not x.f_code.co_name.startswith(("<", "__call__"))
    )


def _is_of_jax(function: Any) -> bool:
    """Whether it is a function of JAX's that `jax.jit` has made, such as `jnp.sin`."""
    if not isinstance(function, _JITTED):
        return False
    code = getattr(getattr(function, "__wrapped__", None), "__code__", None)
    return code is not None and code.co_filename.startswith(JAX[0])


def _callee(code: CodeType, variables: dict[str, Any], text: str) -> Any:
    """What an expression calls, if a global and modules lead to it."""
    try:
        node: Any = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names: list[str] = []
    node = getattr(node, "func", None)
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    # Local variables are not looked at: before Python 3.13 that keeps them alive.
    local = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    if not isinstance(node, ast.Name) or node.id in local:
        return None
    found = variables.get(node.id)
    for name in reversed(names):
        found = vars(found).get(name) if isinstance(found, types.ModuleType) else None
    return found


def _is_repeated(frame: FrameType | None) -> bool:
    """Whether a loop of the program leads here, and nothing that makes a model."""
    found = False
    while frame is not None:
        code = frame.f_code
        if is_maker(code):
            return False
        if _whose(code) is _Whose.USER:
            found = found or is_in_loop(code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return found
