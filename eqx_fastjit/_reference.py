"""The contract as a program: the engine in plain Python, of which no speed is promised.

It has the names of `_native`, and runs where that could not be built, or where
`EQX_FASTJIT_ENGINE=python` asks for it. The tests compare the two. `_statics.py` says
what is the same, and which reader a type has; `csrc/` has the same readers in C.
"""

import struct
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import jax.tree_util as jtu
import numpy as np

from ._blocking import COPIED_BYTES, transferred
from ._statics import (
    flatten_one_level,
    has_hash,
    is_array,
    is_flattened,
    Reader,
    reader_of,
    state_of,
)


class _Same:
    """On a trail: this very object."""

    __slots__ = ("object",)

    def __init__(self, x: Any):
        self.object = x

    def __eq__(self, other: Any) -> bool:
        return type(other) is _Same and self.object is other.object

    def __hash__(self) -> int:
        return id(self.object)  # which this holds


# Readers of objects that are compared by an `__eq__` or a state of their own.
_MAY_BE_EQUAL = ("hashed", "fields", "state")
_ARRAY = _Same("array")
_MISSING = object()


class Walk:
    """Reads a value: its arrays, and all else onto a trail."""

    def __init__(self, x: Any, as_static: bool = False, abstract: bool = False):
        self.abstract = abstract
        self.trail: list[Any] = []
        self.arrays: list[Any] = []
        self.mutables: list[Any] = []  # statics that can be changed in place
        self.static_numpy = False  # whether any static is, or has, an array of NumPy
        # What is to be read next stands last, each with its depth, and the statics that
        # it is in. (Calls of this method by itself would not go as deep as JAX does.)
        self._left: list[Any] = [(x, as_static, 0, None)]
        while self._left:
            x, as_static, self._depth, self._inside = self._left.pop()
            self._read(x, as_static)

    def _read(self, x: Any, as_static: bool) -> None:
        """Read a part of it. Below a static, arrays are static, too."""
        reader = known_reader(x)
        may_be_equal = not as_static and reader.name in _MAY_BE_EQUAL
        if may_be_equal and is_flattened(x):
            # Registered since it was first read: equal ones are never missed.
            reader = Reader("node", is_node=True)
        as_static = as_static or not reader.is_node
        if not as_static and is_array(x, self.abstract):
            self.trail.append(_ARRAY)
            self.arrays.append(x)
            return
        if reader.name == "hashed" and not has_hash(x):  # by rule 6 after all
            reader = reader._replace(name="state", is_mutable=True)
        if as_static and reader.is_mutable:
            inside, distance = self._inside, 1
            while inside is not None:
                around, inside = inside
                if around is x:  # it is in itself
                    self.trail.append(distance)
                    return
                distance += 1
            self._inside = x, self._inside
            self.mutables.append(x)
        match reader.name:
            case "same" | "array" | "tracer":
                self.trail.append(_Same(x))
            case "int" | "text" | "hashed" | "struct":
                self._equal(x, x)
            case "set":
                self._equal(x, frozenset(x))
            case "float" | "complex":
                self.trail += [_Same(type(x)), struct.pack("dd", x.real, x.imag)]
            case "tuple":
                self._parts(x, tuple.__iter__(x), as_static)
            case "list":
                self._parts(x, x, as_static)
            case "dict" if as_static:  # in the order that the function sees
                self._parts(x, x.items(), True)
            case "dict" | "node" | "module":
                children, aux = flatten_one_level(x)
                # JAX sorts a `defaultdict`; the function sees it as it is.
                more = x.items() if as_static and isinstance(x, dict) else ()
                self._later((aux, *more), True)
                self._parts(x, children, as_static)
            case "fields":
                fields = [getattr(x, name, _MISSING) for name in reader.names]
                self._parts(x, fields, True)
            case "numpy" | "scalar" | "state":
                self.static_numpy |= reader.name == "numpy"
                self._state(x)
            case name:
                raise SystemError(f"there is no reader called {name}")

    def _equal(self, x: Any, value: Any) -> None:
        # Tuples compare their parts by identity or `==`, and the hashes first.
        self.trail += [_Same(type(x)), (hash(value), value)]

    def _parts(self, x: Any, parts: Iterable[Any], as_static: bool) -> None:
        parts = list(parts)
        self.trail += [_Same(type(x)), len(parts)]
        self._later(parts, as_static)

    def _later(self, parts: Sequence[Any], as_static: bool) -> None:
        """Have these read next, in this order, before all that is left."""
        if self._depth > sys.getrecursionlimit():
            raise RecursionError("maximum depth exceeded while a call is read")
        self._left += [
            (x, as_static, self._depth + 1, self._inside) for x in reversed(parts)
        ]

    def _state(self, x: Any) -> None:
        state = state_of(x)
        self.trail.append(_Same(type(x)))
        if state is x:
            self.trail.append(_Same(x))
        else:
            self._later((state,), True)


_readers: dict[_Same, Reader] = {}  # by type


def known_reader(x: Any) -> Reader:
    """The reader for the type of a value, chosen when it is first read."""
    cls = _Same(type(x))
    return _readers.get(cls) or _readers.setdefault(cls, reader_of(x))


def forget_readers() -> None:
    """Choose the reader of each type anew."""
    _readers.clear()


# --- specializations ------------------------------------------------------------------


class Specialization:
    """What is compiled for one signature of one function."""

    jitted: Any
    flat: Any

    def __init__(self, walk: Walk):
        self._trail = tuple(walk.trail)
        self._hash = hash(self._trail)
        # The statics that it is made with and that can be changed, and as they are now.
        self._witnesses = walk.mutables
        self.static_numpy = walk.static_numpy
        self._then = Walk(walk.mutables, as_static=True).trail

    def __eq__(self, other: object) -> bool:
        """Whether both are for the same calls."""
        return type(other) is Specialization and self._trail == other._trail

    def __hash__(self) -> int:
        return self._hash

    def is_stale(self) -> bool:
        """Whether statics are not as they were, or cannot be read any more."""
        try:
            return Walk(self._witnesses, as_static=True).trail != self._then
        except Exception:
            return True


def static_key(x: Any) -> Specialization:
    """What is equal of two statics that are the same by the contract, with a hash."""
    return Specialization(Walk(x, as_static=True))


def read(values: tuple[Any, ...], abstract: bool) -> tuple[Any, tuple[Any, ...]]:
    """The signature of bound values, as a specialization; and their arrays."""
    walk = Walk(values, abstract=abstract)
    return Specialization(walk), tuple(walk.arrays)


def find(table: dict[Any, Specialization], signature: Specialization) -> Any:
    """What a table has for a signature, or `None`."""
    found = table.get(signature)
    return None if found is None or found.is_stale() else found


# --- results --------------------------------------------------------------------------


class Plan:
    """How to build the result of one trace."""

    def __init__(self, root: Any, structure: Any):
        self.structure = structure
        self.blocks = -1

    def build(self, arrays: Sequence[Any]) -> Any:
        """The result, from its arrays."""
        return self.structure.rebuild(arrays)


# --- calls ----------------------------------------------------------------------------


class _Here(threading.local):
    active: Any = None
    noted = False


_here = _Here()


def active() -> Any:
    """The specialization that this thread is calling."""
    return _here.active


def set_active(specialization: Any) -> Any:
    """Set that one. Returns the one that was."""
    outer, _here.active = _here.active, specialization
    return outer


_calls: list[Any] = []  # those under way, in all threads


def is_calling() -> bool:
    """Whether a call is under way, in any thread."""
    return bool(_calls)


def note() -> None:
    """Have its call come to `Function.complete_call`."""
    _here.noted = True


def split_output(out: Any) -> tuple[list[Any], Any]:
    """The arrays of what a compiled function returned, and how to build the result."""
    if type(out) is list:
        return out[:-1], out[-1].plan()
    tree, handle = out
    return jtu.tree_leaves(tree), handle.plan()


def _own(arrays: Sequence[Any]) -> tuple[Sequence[Any], bool]:
    """The arrays of a call, of which those of NumPy are copied, or transferred.

    And whether any is still the user's. JAX does not always copy an array of NumPy, and
    the caller may write to it before the device is done. So it is copied, if all of
    them are small; else it is transferred, or the call blocks.
    """
    n_bytes = [x.nbytes for x in arrays if isinstance(x, np.ndarray)]
    if sum(n_bytes) > COPIED_BYTES:
        put = transferred(arrays)
        return put or arrays, put is None
    return [x.copy() if isinstance(x, np.ndarray) else x for x in arrays], False


class Callable:
    """The base class of jitted functions."""

    __slots__ = ("_parts",)

    def _prepare(
        self, function: Any, table: Any, bind: Any, target: Any = None
    ) -> None:
        """What the engine needs of a function, or of a compiled call (the `target`)."""
        object.__setattr__(self, "_parts", (function, table, bind, target))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        function, table, bind, target = self._parts
        values = bind(*args, **kwargs)
        specialization, outer = None, active()
        noted, _here.noted = _here.noted, False
        _calls.append(None)
        try:
            signature, arrays = read(values, False)
            specialization = find(table, signature)
            if specialization is None:
                specialization, arrays = function.specialize(values)
            set_active(specialization)
            arrays, reads_numpy = _own(arrays)
            results, plan = split_output((target or specialization.jitted)(*arrays))
            is_new = _here.noted or plan.blocks < 0
            function.complete_call(
                specialization, plan, values, arrays, results, is_new, reads_numpy
            )
            return plan.build(results)
        except BaseException as e:
            raise function.error_of_call(specialization, e, values)  # noqa: B904
        finally:
            _calls.pop()
            set_active(outer)
            _here.noted = noted
