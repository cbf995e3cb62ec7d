"""Hashable keys for values that are compared whole: by identity, by `==`, by bits."""

import contextlib
import copy
import dataclasses
import struct
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from . import _compat


# Ends what `-0.0` and NaN are on a trail, which `==` does not tell apart or knows.
_BITS = object()


def float_bits(x: float) -> Any:
    """What stands for a number on a trail."""
    return x if x == x and x != 0 else (_BITS, struct.pack("<d", x))


class ByIdentity:
    """Values for objects, by identity, which do not keep the objects alive.

    For a type too: the class of a class may define `__eq__`, and then has no hash.
    """

    def __init__(self) -> None:
        # The id of what is gone may be reused, so a hit compares the object as well.
        self.entries: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def get(self, x: Any) -> Any:
        """The value for an object, or `None`."""
        entry = self.entries.get(id(x))
        return entry[1] if entry is not None and entry[0]() is x else None

    def set(self, x: Any, value: Any) -> Any:
        """Set the value for an object, and return the value.

        Raises `TypeError` if the object takes no weak references.
        """
        number, entries = id(x), self.entries

        def forget(reference: weakref.ref[Any]) -> None:
            entry = entries.get(number)
            if entry is not None and entry[0] is reference:
                entries.pop(number, None)

        entries[number] = weakref.ref(x, forget), value
        return value

    def clear(self) -> None:
        """Forget all."""
        self.entries.clear()


class Identity:
    """A key that is equal for one and the same object."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        # The value lives as long as this key, so its id is not reused.
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return type(other) is Identity and self.value is other.value


class Opaque:
    """A key for a value whose class defines `__eq__` and `__hash__`.

    Keeps the hash that the value had: a value changed in place differs from what it
    was, if its hash does.
    """

    __slots__ = ("hash", "value")

    def __init__(self, value: Any):
        self.value = value
        self.hash = hash(value)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is Opaque
            and type(self.value) is type(other.value)
            and self.hash == other.hash
            and (self.value is other.value or bool(self.value == other.value))
        )


class _Asked(threading.local):
    n = 0


# How many values this thread is asking for their hash.
_asked = _Asked()


def hashed(x: Any) -> Opaque | None:
    """The key of a value that has a hash, or `None`."""
    _asked.n += 1
    try:
        return Opaque(x)
    except Exception as e:
        if isinstance(e, RecursionError) and _asked.n > 1:
            raise  # if each of a thousand levels went on, that would never end
        return None
    finally:
        _asked.n -= 1


def _equal_copy(copied: Callable[[Any], Any], x: Any) -> Any:
    """A copy, if `==` finds it equal; else the value itself. May raise."""
    with jax.ensure_compile_time_eval():
        out = copied(x)
    return out if equal(out, x) else x


def _with_copied_attributes(x: Any) -> Any:
    """A copy of an object of which `copy.deepcopy` makes none that is equal.

    It may hold a lock, which cannot be copied, or something that is only equal to
    itself. Such attributes stay the same, and the others are copied.
    """
    if dataclasses.is_dataclass(x):
        raise TypeError("compared by its fields")
    if hasattr(type(x), "__del__"):
        raise TypeError("may release what the copy shares with it")
    out = object.__new__(type(x))
    attributes = object.__getattribute__(out, "__dict__")
    for name, value in object.__getattribute__(x, "__dict__").items():
        attributes[name] = value
        with contextlib.suppress(Exception):
            attributes[name] = _equal_copy(copy.deepcopy, value)
    return out


class Snapshot:
    """A key for a value with `__eq__` but without a hash: a copy to compare with."""

    __slots__ = ("snapshot", "type")

    def __init__(self, value: Any):
        self.type = type(value)
        # If there is no copy, compare the value itself, as Equinox does.
        self.snapshot = value
        for copied in (copy.deepcopy, _with_copied_attributes):
            with contextlib.suppress(Exception):
                snapshot = _equal_copy(copied, value)
                if snapshot is not value:
                    self.snapshot = snapshot
                    break

    def __hash__(self) -> int:
        return hash(self.type)

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is Snapshot
            and self.type is other.type
            and (
                self.snapshot is other.snapshot or equal(self.snapshot, other.snapshot)
            )
        )


def equal(x: Any, y: Any) -> bool:
    """Whether `==` holds, which may compute with arrays.

    Not as a part of the program that is being traced, if there is one: to say so takes
    JAX four times as long as comparing two small objects.
    """
    if _compat.is_outside_traces():
        return bool(x == y)
    with jax.ensure_compile_time_eval():
        return bool(x == y)


_snapshots = ByIdentity()


def snapshot_key(x: Any) -> Snapshot:
    """The last snapshot, if it still equals the value. Copying may be slow."""
    known = _snapshots.get(x)
    if known is not None:
        try:
            if equal(known.snapshot, x):
                return known
        except Exception:
            pass  # as where a snapshot is made
    out = Snapshot(x)
    if out.snapshot is not x:
        with contextlib.suppress(TypeError):  # it takes no weak references
            _snapshots.set(x, out)
    return out


def array_kind(array: Any) -> tuple[Any, ...]:
    """What identifies an array, apart from its contents."""
    dtype = array.dtype
    if not isinstance(dtype, np.dtype) or dtype.names is not None:
        dtype = str(dtype)  # names of fields can be written to
    weak_type = isinstance(array, jax.Array) and bool(
        getattr(array, "weak_type", False)
    )
    return type(array), tuple(array.shape), dtype, weak_type


def array_contents(array: Any, key_of: Callable[[Any], Any]) -> Any:
    """What is in an array, to compare with; objects by `key_of`.

    Not as a part of the program that is being traced, if there is one.
    """
    if isinstance(array, jax.Array):
        if array.is_deleted():
            return Identity(array)  # it was donated, and nobody can read it any more
        if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            with jax.ensure_compile_time_eval():
                array = jax.random.key_data(array)
    elif isinstance(array, np.ma.MaskedArray):
        # An array would be its data alone.
        mask = np.ma.getmaskarray(array).tobytes()
        # (`np.ma.masked` raises when asked for what it is filled with.)
        fill = None if array is np.ma.masked else array.fill_value
        return array_contents(array.data, key_of), mask, key_of(fill)
    host = np.asarray(array)
    if host.dtype.names is not None:
        # The bytes of a record also have what is between its fields, and addresses.
        return tuple([array_contents(host[x], key_of) for x in host.dtype.names])
    if host.dtype.hasobject:  # the bytes of objects, and of strings, are addresses
        return tuple([key_of(x) for x in host.flat])
    if host.dtype.char in "gG":  # a `longdouble` has bytes that mean nothing
        return tuple(map(str, host.flat))
    return host.tobytes()


def memory_key(x: memoryview) -> Any:
    """The key of a `memoryview`."""
    try:
        return x.format, x.shape, bytes(x)
    except ValueError:
        return Identity(x)  # it was released


@dataclasses.dataclass(slots=True, eq=False)
class StaticArray:
    """A key for an array in a static field.

    A single element is compared by its bits. Larger arrays compare by identity, and
    those of NumPy, which can be written to, by their contents as well. Equinox compares
    them with `==`, which is an error for two of them; so it is with us
    (`Function.check_static_arrays`).
    """

    value: Any
    kind: Any
    contents: Any

    def is_single(self) -> bool:
        return self.value.size == 1

    def __hash__(self) -> int:
        return hash(self.kind)

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is StaticArray
            and self.kind == other.kind
            and (self.value is other.value or self.is_single())
            and self.contents == other.contents
        )
