"""The contract as a program: what a value is, but for its arrays, as a *trail*.

Two values with the same trail have the same statics (`_statics.py`), and the same
structure. The reference engine compares calls by it, and both engines what they do not
read themselves. `csrc/read.c` has the same readers in C.
"""

import struct
import sys
from collections.abc import Iterable, Sequence
from typing import Any

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
            x, as_static, self._depth, self._being_read = self._left.pop()
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
            around, distance = self._being_read, 1
            while around is not None:
                other, around = around
                if other is x:  # it is in itself
                    self.trail.append(distance)
                    return
                distance += 1
            self._being_read = x, self._being_read
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
            (x, as_static, self._depth + 1, self._being_read) for x in reversed(parts)
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


def static_key(x: Any) -> tuple[Any, ...]:
    """What is equal of two statics that are the same by the contract, with a hash."""
    return tuple(Walk(x, as_static=True).trail)
