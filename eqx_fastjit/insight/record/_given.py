"""What calls of a function were given, and what became of it.

An array that nobody has any more once a call has returned could have been donated. To
be sure, it has to be gone in the statement of the call itself, which replaces it
(`model, loss = step(model, x)`), in each call that is looked at closely; and by the
next call of all others. Of many arrays, the later calls tell of some in turn. What was
read in between, or is kept by anybody, was not.
"""

import collections
import contextlib
import functools
import itertools
import sys
import weakref
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple

import jax
import numpy as np

from eqx_fastjit._facts import aval_of, is_written_by_user, OWN
from eqx_fastjit._statics import partition

from ._samples import Position, position_of
from ._statements import statement_of, users_frames


# Elements of an array of NumPy that are compared, at most.
_SAMPLED = 64
# Calls that must have been looked at.
_LEAST_LOOKS = 3
# Calls of which all arrays are noted; and how many, about, are looked at in later
# looks, in turn. Of all that takes too long.
_NOTED_WHOLE, _LOOKED_AT = 100, 64


class Argument(NamedTuple):
    """The arrays of one argument, among those of a call."""

    name: str
    indices: range


class Chain(NamedTuple):
    """The user's frames of a call, innermost first."""

    frames: tuple[int, ...]  # the `id` of each
    positions: tuple[Position, ...]
    # Whether the innermost of them makes the call, rather than a library that it calls.
    is_by_user: bool


class Aval(NamedTuple):
    """What an array must have in common with a result to be donated for it."""

    shape: tuple[int, ...]
    dtype: Any
    n_bytes: int


def chain_of(frame: FrameType | None) -> Chain:
    """The user's frames from this one on."""
    while frame is not None and frame.f_code.co_filename.startswith(OWN):
        frame = frame.f_back
    frames = [*users_frames(frame)]
    is_by_user = frame is not None and is_written_by_user(frame.f_code)
    return Chain(tuple(map(id, frames)), tuple(map(_position, frames)), is_by_user)


def _position(frame: FrameType) -> Position:
    return position_of(frame.f_code, frame.f_lasti)


class Given:
    """The arrays that calls of one specialization were given."""

    def __init__(self, function: Any):
        self._function = weakref.ref(function)
        # What has arrays, in the order of these; nothing if that is not known.
        self.arguments: list[Argument] = []
        # Whether the function itself has arrays, such as a bound method.
        self.has_own_arrays = False

        # All that calls were given, with a scalar for each array.
        self.template: Any = ()
        # Shape, dtype and bytes of each array, and of each result.
        self.avals: list[Aval] = []
        self.results: list[Aval] = []

        # Those that were not gone when they should have been; calls that tell of it.
        self.kept: set[int] = set()
        self.looks = 0
        # What tells the arrays of NumPy that the latest call which was looked at was
        # given from others; and whether any call had others.
        self._numpy: list[Any] | None = None
        self.numpy_changes = False

        # What is noted of the latest call: all that may be gone, of later calls one
        # array of each argument in turn.
        self._noted = 0
        self._left: list[tuple[int, weakref.ref[Any]]] = []
        # The indices of the arguments that are donatable so far; and how many arrays
        # were kept as these were found.
        self._open: list[range] = []
        self._n_kept = -1
        # Of a call that is looked at, those that have to go in its statement.
        self._watched: set[int] = set()

    def check(self) -> None:
        """The next call begins: what is there of the last one was kept."""
        for i, ref in self._left:
            if ref() is not None:
                self.kept.add(i)
        self._left = []
        if self._watched:
            self.kept |= self._watched
            self._watched = set()

    def note(self, arrays: Sequence[Any]) -> None:
        """A call was given these."""
        if self._n_kept != len(self.kept) and self.looks >= _LEAST_LOOKS:
            self._n_kept = len(self.kept)
            self._open = [x.indices for x in self.donatable]
        if not self._open:
            return

        self._noted += 1
        n = self._noted
        if n > _NOTED_WHOLE:
            indices = [x[n % len(x)] for x in self._open]
        else:
            indices = itertools.chain(*self._open)
        for i in indices:
            if isinstance(arrays[i], jax.Array):
                self._left.append((i, weakref.ref(arrays[i])))
            else:  # of NumPy, in this call
                self.kept.add(i)

    def look(
        self,
        values: tuple[Any, ...],
        arrays: Sequence[Any],
        results: Sequence[Any],
        chain: Chain,
    ) -> None:
        """The same, of a call that is looked at closely."""
        if not self.looks:
            self._find_arguments(values, len(arrays))
        step = 1
        if self.looks > _LEAST_LOOKS:
            step += len(arrays) // _LOOKED_AT
        if self.looks % step == 0:  # the largest of several shapes count
            avals = [_aval(x) for x in arrays]
            if sum(x.n_bytes for x in avals) >= sum(x.n_bytes for x in self.avals):
                self.avals, self.results = avals, [_aval(x) for x in results]

        # What the call returns as it is, or was given twice, cannot be donated.
        counts = collections.Counter(map(id, arrays))
        counts.update(map(id, results))
        for i in range(self.looks % step, len(arrays), step):
            x = arrays[i]
            if counts[id(x)] > 1 or not isinstance(x, jax.Array):
                self.kept.add(i)
            elif i not in self.kept:
                self._watched.add(i)
                is_gone = functools.partial(self._is_gone, i, chain)
                self._left.append((i, weakref.ref(x, is_gone)))
        self.looks += 1

    def _find_arguments(self, values: tuple[Any, ...], n_arrays: int) -> None:
        function: Any = self._function()
        begin = 0
        for name, value in function.arguments_of(values):
            end = begin + len(partition(value, abstract=False)[0])
            self.arguments.append(Argument(name, range(begin, end)))
            is_function = function.fun is None and name == function.info.name
            self.has_own_arrays |= is_function and end > begin
            begin = end
        if begin != n_arrays:
            self.arguments = []

    def _is_gone(self, index: int, chain: Chain, _: Any) -> None:
        """Nobody has an array any more: is that in the statement of the call?"""
        try:
            now = next(users_frames(sys._getframe(1)), None)
            if now is not None and _in_statement(chain, id(now), _position(now)):
                self._watched.discard(index)
        except Exception:  # at the end of a process: then it counts as kept
            return

    # --- donation ---

    @property
    def donatable(self) -> list[Argument]:
        """The arguments of which nobody had an array after any call."""
        if self.looks < _LEAST_LOOKS or self.has_own_arrays:
            return []
        return [x for x in self.arguments if x.indices and not self._is_kept(x)]

    @property
    def kept_arguments(self) -> list[Argument]:
        """Those of which an array was still there, or is one of NumPy's."""
        return [x for x in self.arguments if self._is_kept(x)]

    def _is_kept(self, argument: Argument) -> bool:
        return not self.kept.isdisjoint(argument.indices)

    @property
    def donated_bytes(self) -> int:
        """Bytes of donatable arrays whose memory a result of the same kind can have."""
        results = collections.Counter(self.results)
        given = collections.Counter(
            self.avals[i] for x in self.donatable for i in x.indices
        )
        return sum(aval.n_bytes * n for aval, n in (given & results).items())

    # --- NumPy ---

    def look_at_values(self, values: tuple[Any, ...]) -> None:
        """What all calls are given, and whether its arrays of NumPy are others now."""
        if self._numpy is None:
            with contextlib.suppress(Exception):  # of a class that looks at shapes, say
                self.template = jax.tree.map(_without_data, values)
        leaves = jax.tree_util.tree_leaves(values)
        arrays = [x for x in leaves if isinstance(x, np.ndarray | np.generic)]
        given = [(id(x), _sample(x)) for x in arrays]
        self.numpy_changes |= self._numpy not in (None, given)
        self._numpy = given


def _sample(x: Any) -> bytes:
    """Some elements of an array of NumPy, which may be written to."""
    return x.flat[:: x.size // _SAMPLED + 1].tobytes()


def _without_data(x: Any) -> Any:
    """A scalar for an array."""
    is_array = isinstance(x, jax.Array | np.ndarray | np.generic)
    return np.zeros((), np.float32) if is_array else x


def _aval(x: Any) -> Aval:
    aval = aval_of(x)
    return Aval(aval.shape, aval.dtype, x.nbytes)


@functools.lru_cache(maxsize=16)  # mostly many arrays are gone at once
def _in_statement(chain: Chain, frame: int, now: Position) -> bool:
    """Whether a program is still in the statement of a call, which has returned.

    Or in that of a function around it, where the functions inside return with the call,
    so that nothing has run since. `frame` is the `id` of the frame that is at `now`.
    """
    place = statement_of(now).place
    for number, position in zip(chain.frames, chain.positions, strict=True):
        statement = statement_of(position)
        if number == frame:
            return statement.place == place and statement.reads_once
        code = position.code
        is_lambda = code.co_name == "<lambda>"
        own = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
        returns = statement.is_last or is_lambda
        if not (returns and statement.reads_again.isdisjoint(own)):
            return False
    return False
