"""Hashable keys for values that are compared whole: by identity, by `==`, by bits."""

import copy
import functools
import weakref
from typing import Any

import jax
import numpy as np


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


class Snapshot:
    """A key for a value with `__eq__` but without a hash: a copy to compare with."""

    __slots__ = ("snapshot", "type")

    def __init__(self, value: Any):
        self.type = type(value)
        self.snapshot = value
        try:
            with jax.ensure_compile_time_eval():
                snapshot = copy.deepcopy(value)
            if equal(snapshot, value):
                self.snapshot = snapshot
        except Exception:
            # It cannot be used as a snapshot, so compare the value itself, as Equinox
            # does.
            pass

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

    Not as a part of the program that is being traced, if there is one.
    """
    with jax.ensure_compile_time_eval():
        return bool(x == y)


# From the id of a living value to the last snapshot of it, likewise.
_snapshots: dict[int, tuple[weakref.ref[Any], Snapshot]] = {}


def snapshot_key(x: Any) -> Snapshot:
    """The last snapshot, if it still equals the value. Copying may be slow."""
    key = id(x)
    known = _snapshots.get(key)
    if known is not None and known[0]() is x:
        try:
            if equal(known[1].snapshot, x):
                return known[1]
        except Exception:
            pass  # as where a snapshot is made
    out = Snapshot(x)
    if out.snapshot is x:
        return out
    try:
        # Bound here, because at exit, the module may be gone before the last static.
        forget = functools.partial(_snapshots.pop, key)
        _snapshots[key] = weakref.ref(x, lambda _: forget(None)), out
    except TypeError:
        pass
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


class StaticArray:
    """A key for an array in a static field.

    A single element is compared by its bits. Larger arrays compare by identity, and
    those of NumPy, which can be written to, by their contents as well. Equinox compares
    them with `==`, which is an error for two of them; so it is with us
    (`Function.check_static_arrays`).
    """

    __slots__ = ("contents", "kind", "value")

    def __init__(self, value: Any, kind: Any, contents: Any):
        self.value = value
        self.kind = kind
        self.contents = contents

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
