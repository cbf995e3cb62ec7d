"""The engine in plain Python, of which no speed is promised.

It has the names of `_native`, and runs where that could not be built, or where
`EQX_FASTJIT_ENGINE=python` asks for it. The tests compare the two.
"""

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._blocking import COPIED_BYTES, Observer, transferred
from ._result import flat_output
from ._statics import forget_readers as forget_readers, Walk


# --- specializations ------------------------------------------------------------------


class Specialization:
    """What is compiled for one signature of one function."""

    jitted: Any
    flat: Any

    def __init__(self, walk: Walk):
        self._trail = tuple(walk.trail)
        self._hash = hash(self._trail)
        self.static_numpy = walk.static_numpy
        # The statics that it is made with and that can be changed, and as they are now.
        self._witnesses = walk.mutables
        self._then = Walk(walk.mutables, as_static=True).trail

    def __eq__(self, other: object) -> bool:
        """Whether both are for the same calls."""
        return type(other) is Specialization and self._trail == other._trail

    def __hash__(self) -> int:
        return self._hash

    def is_stale(self) -> bool:
        """Whether its statics are not as they were, or cannot be read any more.

        Those of a call may be others, which are equal; but tracing reads its own.
        """
        try:
            return Walk(self._witnesses, as_static=True).trail != self._then
        except Exception:
            return True


def read(values: tuple[Any, ...], abstract: bool) -> tuple[Any, tuple[Any, ...]]:
    """The signature of bound values, as a specialization; and their arrays.

    `abstract`: whether a `jax.ShapeDtypeStruct` stands for an array.
    """
    walk = Walk(values, abstract=abstract)
    return Specialization(walk), tuple(walk.arrays)


# --- results --------------------------------------------------------------------------


class Plan:
    """How to build the result of one trace."""

    # (C builds it by the steps of `root`.)
    def __init__(self, root: Any, structure: Any):
        self.structure = structure
        # What has to be done after a call, in bits (`_blocking.py`): nothing yet.
        self.blocks = 0

    def build(self, arrays: Sequence[Any]) -> Any:
        """The result, from its arrays."""
        return self.structure.rebuild(arrays)


# --- calls ----------------------------------------------------------------------------


class _Here(threading.local):
    active: Any = None
    is_new = False


_here = _Here()


def active() -> Any:
    """The specialization that this thread is calling."""
    return _here.active


def set_active(specialization: Any) -> Any:
    """Set that one. Returns the one that was."""
    outer, _here.active = _here.active, specialization
    return outer


_observer: Observer | None = None


def set_observer(observer: Observer | None) -> None:
    """Have an observer make every call from now on; with `None`, none does."""
    global _observer
    _observer = observer


# A `None` for each call under way, in all threads: a list is safe under threads.
_calls: list[None] = []


def is_calling() -> bool:
    """Whether a call is under way, in any thread."""
    return bool(_calls)


def mark_new() -> None:
    """Something is traced or compiled for the call of this thread.

    `complete_call` is told of it.
    """
    _here.is_new = True


def same_handle(handle: Any, _: Any) -> Any:
    """JAX's unflatten of a `_result.Handle`, whose aux data is the handle itself."""
    return handle


def _numpy_bytes(arrays: Sequence[Any]) -> int:
    """The bytes of those arrays of a call that are of NumPy."""
    return sum(x.nbytes for x in arrays if isinstance(x, np.ndarray))


def _own(arrays: Sequence[Any], numpy_bytes: int) -> tuple[Sequence[Any], bool]:
    """The arrays of a call, of which those of NumPy are copied, or transferred.

    And whether any is still the user's. JAX does not always copy an array of NumPy, and
    the caller may write to it before the device is done. So they are copied, if they
    are small together; else they are transferred; if that cannot be, the call blocks.
    """
    if numpy_bytes > COPIED_BYTES:
        put = transferred(arrays)
        return (arrays, True) if put is None else (put, False)
    return [x.copy() if isinstance(x, np.ndarray) else x for x in arrays], False


class Callable:
    """The base class of jitted functions."""

    __slots__ = ("_parts",)

    def _connect(self, callee: Any, bind: Any, target: Any, *_: Any) -> None:
        """Set it up (`_engine.connect`). C is told more, which it would look up often.

        **Arguments:**

        - `callee`: has the table of specializations, makes one on a cache miss,
            completes calls, and words errors.
        - `bind`: from the arguments of a call to its values.
        - `target`: called in place of a specialization's `jitted`, unless it is `None`.
        """
        object.__setattr__(self, "_parts", (callee, bind, target))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        callee, bind, target = self._parts

        observer, began = _observer, None  # another thread may take it away
        if observer is not None:
            with contextlib.suppress(Exception):
                began = observer.clock()
        values = bind(*args, **kwargs)

        specialization, outer = None, active()
        was_new, _here.is_new = _here.is_new, False
        _calls.append(None)
        try:
            signature, arrays = read(values, False)
            specialization = callee.table.get(signature)
            if specialization is None or specialization.is_stale():
                # It reads the values again, which another thread may have changed.
                specialization, arrays = callee.specialize(values)
            set_active(specialization)

            numpy_bytes = _numpy_bytes(arrays)
            arrays, reads_numpy = _own(arrays, numpy_bytes)
            if target is None:
                target = specialization.jitted
            if observer is None:
                returned = target(*arrays)
            else:
                told = tuple(arrays), numpy_bytes, began
                returned = observer.call(target, specialization, values, *told)

            # The handle is that of the trace, which knows how to build its result.
            *results, handle = flat_output(returned)
            plan, is_new = handle(), _here.is_new
            callee.complete_call(
                specialization, plan, arrays, results, is_new, reads_numpy
            )
            return plan.build(results)
        except BaseException as e:
            # It sets its own cause, and may be `e` itself.
            raise callee.error_of_call(specialization, e, values)  # noqa: B904
        finally:
            _calls.pop()
            set_active(outer)
            _here.is_new = was_new
