"""What calls of a function were given, and what became of it.

An array that nobody has any more once a call has returned could have been donated. To
be sure, it has to be gone in the statement of the call itself, which replaces it
(`model, loss = step(model, x)`), in each call that is looked at closely, and by the
next call of all others. What was read in between, or is kept by anybody, was not.
"""

import functools
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

import jax
import numpy as np

from eqx_fastjit._blocking import COPIED_BYTES, is_cpu
from eqx_fastjit._facts import aval_of, is_written_by_user
from eqx_fastjit._statics import partition

from ._samples import Position
from ._statements import statement_of


# Bytes of an array of NumPy from which on it matters that it is moved.
_LEAST_BYTES = 1 << 16


class Argument(NamedTuple):
    """The arrays of one argument, among those of a call."""

    name: str
    indices: range


class Chain(NamedTuple):
    """The user's frames of a call, innermost first."""

    frames: tuple[int, ...]  # the `id` of each
    positions: tuple[Position, ...]


class Moved:
    """An argument of NumPy, which calls copy or transfer."""

    def __init__(self, path: str, n_bytes: int):
        self.path = path
        self.n_bytes = n_bytes
        # How often it was the very array of the last call that was looked at.
        self.same = self.looks = 0
        self.seconds = 0.0  # of one move
        self.last: weakref.ref[Any] | None = None


_is_users = functools.lru_cache(maxsize=4096)(is_written_by_user)


def users_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of the user's own code, innermost first."""
    while frame is not None:
        if _is_users(frame.f_code):
            yield frame
        frame = frame.f_back


def chain_of(frame: FrameType | None) -> Chain:
    """The user's frames from this one on."""
    frames = [*users_frames(frame)]
    positions = [Position(x.f_code, x.f_lasti) for x in frames]
    return Chain(tuple(map(id, frames)), tuple(positions))


class Given:
    """The arrays that calls of one specialization were given."""

    def __init__(self, function: Any, values: tuple[Any, ...], n_arrays: int):
        self.arguments: list[Argument] = []
        self.has_own_arrays = False
        begin = 0
        for name, value in function.arguments_of(values):
            end = begin + len(partition(value, abstract=False)[0])
            self.arguments.append(Argument(name, range(begin, end)))
            is_function = function.fun is None and name == function.info.name
            self.has_own_arrays |= is_function and end > begin
            begin = end
        if begin != n_arrays:
            self.arguments = []

        # Shape, dtype and bytes of each array, and of each result.
        self.avals: list[Any] = []
        self.results: list[Any] = []
        # Those that were not gone when they should have been; calls that tell of it.
        self.kept: set[int] = set()
        self.looks = 0
        self.moved: dict[int, Moved] = {}
        self._left: dict[int, weakref.ref[Any]] = {}
        # Of a call that is looked at, those that have to go in its statement.
        self._watched: set[int] = set()

    def check(self) -> None:
        """The next call begins: what is there of the last one was kept."""
        kept = [i for i, ref in self._left.items() if ref() is not None]
        self.kept.update(kept, self._watched)
        self._left = {}
        self._watched = set()

    def note(self, arrays: Sequence[Any]) -> None:
        """A call was given these."""
        for i, x in enumerate(arrays):
            if i not in self.kept:
                self._left[i] = weakref.ref(x)

    def look(self, arrays: Sequence[Any], results: Sequence[Any], chain: Chain) -> None:
        """The same, of a call that is looked at closely."""
        self.looks += 1
        self.avals = [_aval(x) for x in arrays]
        self.results = [_aval(x) for x in results]
        # What the call returns as it is, or was given twice, cannot be donated.
        ids = [id(x) for x in arrays]
        returned = {id(x) for x in results}
        for i, x in enumerate(arrays):
            is_single = ids.count(id(x)) == 1 and id(x) not in returned
            if not (is_single and isinstance(x, jax.Array)):
                self.kept.add(i)
            elif i not in self.kept:
                self._watched.add(i)
                is_gone = functools.partial(self._is_gone, i, chain)
                self._left[i] = weakref.ref(x, is_gone)

    def _is_gone(self, index: int, chain: Chain, _: Any) -> None:
        """Nobody has an array any more: is that in the statement of the call?"""
        try:
            if index in self._watched and _in_statement(chain, sys._getframe(1)):
                self._watched.discard(index)
        except Exception:  # at the end of a process: then it counts as kept
            return

    # --- NumPy ---

    def look_at_numpy(self, values: tuple[Any, ...]) -> None:
        """Which arrays of NumPy these are, and how long it takes to move them."""
        leaves = jax.tree_util.tree_leaves(values)
        arrays = [x for x in leaves if _is_array(x)]
        for i, x in enumerate(arrays):
            if isinstance(x, np.ndarray) and x.nbytes >= _LEAST_BYTES:
                moved = self.moved.setdefault(i, Moved(self._path(i), x.nbytes))
                moved.looks += 1
                moved.same += moved.last is not None and moved.last() is x
                moved.last = weakref.ref(x)
                moved.n_bytes = x.nbytes
                moved.seconds = _seconds_to_move(x)

    def _path(self, index: int) -> str:
        names = (x.name for x in self.arguments if index in x.indices)
        return next(names, "an argument")


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic)


def _aval(x: Any) -> Any:
    """Shape, dtype and bytes."""
    aval = aval_of(x)
    return aval.shape, aval.dtype, x.nbytes


def _seconds_to_move(x: np.ndarray) -> float:  # pyright: ignore
    """Seconds that a call takes to copy an array, or to transfer it."""
    device = jax.local_devices()[0]
    start = time.perf_counter()
    if not is_cpu(device):
        jax.block_until_ready(jax.device_put(x, device))
    elif x.nbytes <= COPIED_BYTES:
        x.copy()
    return time.perf_counter() - start


def _in_statement(chain: Chain, frame: FrameType | None) -> bool:
    """Whether a program is still in the statement of a call, which has returned.

    Or in that of a function around it, where the functions inside return with the call,
    so that nothing has run since.
    """
    now = next(users_frames(frame), None)
    if now is None:
        return False

    line = statement_of(Position(now.f_code, now.f_lasti)).place.line
    for number, position in zip(chain.frames, chain.positions, strict=True):
        statement = statement_of(position)
        if number == id(now):
            return statement.place.line == line
        is_lambda = position.code.co_name == "<lambda>"
        if not (statement.is_last or is_lambda):
            return False
    return False
