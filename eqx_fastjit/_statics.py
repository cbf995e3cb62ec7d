"""When are two static values the same?

`equinox.filter_jit` asks `==` alone, so `1`, `1.0` and `True` share a trace, as do
`0.0` and `-0.0`, a NaN never equals itself, and an array gives an array. Here every
static is turned into a *token*: a hashable stand-in such that two tokens are equal
exactly if the values may share a trace. Type, bits and identity decide; `==` is asked
only of values whose class defines it, and only between values of one type with one
hash.

A token is a snapshot. A mutable value that changes gives another token at the next
call, so it is never served from a stale cache.
"""

import collections
import copy
import dataclasses
import functools
import marshal
import struct
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer


# Types whose values equal each other only if they are interchangeable, so that
# `(type, value)` is a token already. Classes and functions compare by identity.
_ATOMS = frozenset(
    {
        int,
        bool,
        str,
        bytes,
        type(None),
        type(Ellipsis),
        type(NotImplemented),
        type,
        types.FunctionType,
        types.BuiltinFunctionType,
        types.ModuleType,
    }
)

# Never registered as nodes by anybody: JAX itself would not survive it.
BUILT_IN = _ATOMS | {float, complex}

Token = Any


class UnhashableStatic(TypeError):
    """A static leaf that cannot be hashed."""


class _Identity:
    """Token of a value that is equal to itself alone."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        # The value is alive for as long as this token is: its id is not reused.
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return type(other) is _Identity and self.value is other.value


class _Opaque:
    """Token of a value whose class defines `__eq__` and `__hash__`.

    Keeps the hash that the value had, so that a value changed in place differs from
    what it was.
    """

    __slots__ = ("hash", "value")

    def __init__(self, value: Any):
        self.value = value
        self.hash = hash(value)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is _Opaque
            and type(self.value) is type(other.value)
            and self.hash == other.hash
            and (self.value is other.value or bool(self.value == other.value))
        )


class _Unhashable:
    """Token of a value with `__eq__` but no hash, kept in a static field."""

    __slots__ = ("snapshot", "type")

    def __init__(self, value: Any):
        self.type = type(value)
        self.snapshot = value
        try:
            # Not as a part of the program that is being traced, if there is one.
            with jax.ensure_compile_time_eval():
                snapshot = copy.deepcopy(value)
                if snapshot == value:
                    self.snapshot = snapshot
        except Exception:
            # No use as a snapshot: compare the value itself, as Equinox does.
            pass

    def __hash__(self) -> int:
        return hash(self.type)

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is _Unhashable
            and self.type is other.type
            and (
                self.snapshot is other.snapshot or bool(self.snapshot == other.snapshot)
            )
        )


# From the id of a living value to the last snapshot of it. (The reference tells whether
# the id is still that of the same value.)
_snapshots: dict[int, tuple[weakref.ref[Any], _Unhashable]] = {}


def _unhashable_token(x: Any) -> _Unhashable:
    """The last snapshot if it is still like the value: copying it may take long."""
    key = id(x)
    known = _snapshots.get(key)
    if known is not None and known[0]() is x:
        try:
            if bool(known[1].snapshot == x):
                return known[1]
        except Exception:
            pass  # as where a token is made
    out = _Unhashable(x)
    if out.snapshot is x:
        return out
    try:
        # Bound here: the module may be gone before the last static.
        forget = functools.partial(_snapshots.pop, key)
        _snapshots[key] = weakref.ref(x, forget), out
    except TypeError:
        pass
    return out


class StaticArray:
    """Token of an array in a static field.

    Compares by identity, and by value for a single element. Equinox compares such
    arrays with `==`, which is an error for two arrays of more than one element; so it
    is with us (`without_static_arrays` finds the clash). NumPy arrays can be written
    to, so their contents count as well.
    """

    __slots__ = ("contents", "value")

    def __init__(self, value: Any):
        self.value = value
        self.contents = value.tobytes() if isinstance(value, np.ndarray) else None

    def __hash__(self) -> int:
        return hash(self.kind())

    def kind(self) -> tuple[Any, ...]:
        return type(self.value), self.value.shape, str(self.value.dtype)

    def __eq__(self, other: object) -> bool:
        if type(other) is not StaticArray or self.kind() != other.kind():
            return False
        if self.value is other.value:
            return self.contents == other.contents
        return self.value.size == 1 and bool((self.value == other.value).all())


def without_static_arrays(tok: Token) -> tuple[Token, list[Any]]:
    """A token with every larger static array replaced by its shape and dtype.

    Returns it with the arrays. Where two tokens agree so but hold different arrays,
    Equinox cannot tell whether they are equal.
    """
    arrays: list[Any] = []

    def walk(tok: Token) -> Token:
        if type(tok) is tuple:
            return tuple([walk(part) for part in tok])
        if type(tok) is StaticArray and tok.value.size != 1:
            arrays.append(tok.value)
            return tok.kind()
        return tok

    return walk(tok), arrays


def is_identity_type(cls: type) -> bool:
    """Whether instances of `cls` are equal to themselves alone."""
    return (
        cls.__eq__ is object.__eq__
        and cls.__ne__ is object.__ne__
        and cls.__hash__ is object.__hash__
    )


def _float_token(x: float) -> Token:
    if x != x or x == 0:
        return (float, struct.pack("<d", x))
    return (float, x)


def _complex_token(x: complex) -> Token:
    return (complex, _float_token(x.real), _float_token(x.imag))


def _tokens(values: Any) -> tuple[Token, ...]:
    return tuple([token(x) for x in values])


class _Visiting(threading.local):
    """The mutable values that this thread is in the middle of, with their depth."""

    def __init__(self) -> None:
        self.depth: dict[int, int] = {}


_visiting = _Visiting()


def _acyclic(make: Callable[[Any], Token]) -> Callable[[Any], Token]:
    """A value that contains itself has the way back to it as its token there."""

    def make_token(x: Any) -> Token:
        depth = _visiting.depth
        if id(x) in depth:
            return ("cycle", depth[id(x)])
        depth[id(x)] = len(depth)  # alive until it is deleted below
        try:
            return make(x)
        finally:
            del depth[id(x)]

    return make_token


class _Hashed:
    """A large token, which is hashed once."""

    __slots__ = ("hash", "token")

    def __init__(self, token: Token):
        self.token = token
        self.hash = hash(token)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(other) is _Hashed
            and self.hash == other.hash
            and self.token == other.token
        )


_LARGE = 100
_FLAT = frozenset({int, bool, str, bytes, float, type(None)})
_MAX_LARGE = 64
_large: dict[bytes, _Hashed] = {}


def _by_contents(make: Callable[[Any], Token]) -> Callable[[Any], Token]:
    """A large container of numbers and strings has its token looked up by its bytes.

    Making it takes 0.1 s for a vocabulary of 100,000 words, `marshal` 5 ms. That tells
    types and bits apart; that it may tell equal strings apart as well does not matter,
    as the token is the same.
    """

    def make_token(x: Any) -> Token:
        if len(x) < _LARGE or type(x) not in _CONTAINERS or not _is_flat(x):
            return make(x)
        key = marshal.dumps(x, 2)  # the version without references between its parts
        out = _large.get(key)
        if out is None:
            if len(_large) >= _MAX_LARGE:
                _large.clear()
            out = _large[key] = _Hashed(make(x))
        return out

    return make_token


def _is_flat(x: Any) -> bool:
    values = x.values() if type(x) is dict else ()
    return {*map(type, x), *map(type, values)} <= _FLAT


# Containers in static fields, and inside other statics. Lists, dicts and sets have no
# hash, and Equinox never asks a static *field* for one.
_CONTAINERS: dict[type, Callable[[Any], Token]] = {
    tuple: _by_contents(lambda x: (tuple, _tokens(x))),
    frozenset: _by_contents(lambda x: (frozenset, frozenset([token(v) for v in x]))),
    slice: lambda x: (slice, _tokens((x.start, x.stop, x.step))),
    range: lambda x: (range, x.start, x.stop, x.step),
    list: _by_contents(_acyclic(lambda x: (list, _tokens(x)))),
    # In order: a function may well go through a static dictionary.
    dict: _by_contents(
        _acyclic(lambda x: (dict, tuple([(token(k), token(v)) for k, v in x.items()])))
    ),
    set: _by_contents(lambda x: (set, frozenset([token(v) for v in x]))),
    bytearray: lambda x: (bytearray, bytes(x)),
    memoryview: lambda x: (memoryview, x.format, x.shape, bytes(x)),
    collections.deque: _acyclic(lambda x: (collections.deque, x.maxlen, _tokens(x))),
    types.MappingProxyType: _acyclic(
        lambda x: (types.MappingProxyType, token(dict(x)))
    ),
    types.SimpleNamespace: lambda x: (types.SimpleNamespace, token(vars(x))),
    float: _float_token,
    complex: _complex_token,
}
# Subclasses of these are taken apart too, if they compare as the base class does.
_SUBCLASSED = (tuple, frozenset, list, dict, set, float, complex)


_COMPARE_AS_DICTS = (collections.OrderedDict, collections.Counter)


def _subclass_token(x: Any) -> Token | None:
    cls = type(x)
    for base in _SUBCLASSED:
        if isinstance(x, base):
            if cls.__eq__ is base.__eq__ or cls in _COMPARE_AS_DICTS:
                # What a `defaultdict` is without, and `==` does not look at.
                factory = token(getattr(x, "default_factory", None))
                return (_Identity(cls), factory, _CONTAINERS[base](x))
            return None
    return None


def _is_plain_dataclass(cls: type) -> bool:
    """Whether `cls` compares by the `__eq__` that `dataclasses` wrote for it."""
    if not hasattr(cls, "__dataclass_fields__"):
        return False
    code = getattr(cls.__eq__, "__code__", None)
    return code is not None and code.co_qualname == "__create_fn__.<locals>.__eq__"


@_acyclic
def _dataclass_token(x: Any) -> Token:
    owner = next(cls for cls in type(x).__mro__ if "__eq__" in vars(cls))
    owner = owner if dataclasses.is_dataclass(owner) else type(x)
    compared = [f.name for f in dataclasses.fields(owner) if f.compare]
    return (_Identity(type(x)), _tokens([getattr(x, name, None) for name in compared]))


def token(x: Any) -> Token:
    """A hashable stand-in for a static value, wherever it may stand."""
    cls = type(x)
    if cls in _ATOMS:
        return (cls, x)
    container = _CONTAINERS.get(cls)
    if container is not None:
        return container(x)
    if is_identity_type(cls):
        return _Identity(x)
    if isinstance(x, np.generic):
        return (cls, x.dtype, x.tobytes())
    if isinstance(x, Tracer):
        return _Identity(x)
    if isinstance(x, np.ndarray | jax.Array):
        return StaticArray(x)
    if (out := _subclass_token(x)) is not None:
        return out
    if _is_plain_dataclass(cls):
        return _dataclass_token(x)
    try:
        return _Opaque(x)
    except TypeError:
        # No hash, which Equinox never asks of a static field.
        if dataclasses.is_dataclass(x):
            return _dataclass_token(x)
        return _unhashable_token(x)


def leaf_token(x: Any) -> Token:
    """A token for a static *leaf*, which must be hashable, as in Equinox."""
    cls = type(x)
    if cls not in _ATOMS and not is_identity_type(cls):
        try:
            hash(x)
        except TypeError as e:
            raise UnhashableStatic(str(e)) from e
    return token(x)


def is_stable(x: Any) -> bool:
    """Whether the same object always has the same token.

    True of immutable values and of those that compare by identity. Generated code may
    then compare objects with `is`. Everything else has its token made anew each time.
    """
    cls = type(x)
    if cls in _ATOMS or cls in (float, complex, range):
        return True
    if cls is tuple or cls is frozenset:
        return all(map(is_stable, x))
    if cls is slice:
        return all(map(is_stable, (x.start, x.stop, x.step)))
    if isinstance(x, np.void):
        return False  # a record, whose fields can be written to
    if isinstance(x, np.dtype):
        return x.fields is None  # else the names of the fields can be changed
    return is_identity_type(cls) or isinstance(x, np.generic | jax.Array)
