"""When are two static values the same?

`equinox.filter_jit` asks `==` alone, so `1`, `1.0` and `True` share a trace, as do
`0.0` and `-0.0`, a NaN never equals itself, and an array gives an array. Here types,
bits and identity decide. `==` is asked only of values whose class defines it, and only
between values of one type with one hash.

Each type has one *policy*, chosen when it is first seen. The walk over a call
(`_partition.py`, and `_walk.h` in the same way) applies it and writes what it finds
on a *trail*: two values are the same exactly if their trails are equal. A trail is a
snapshot, so a value that is changed in place has another trail at the next call.
"""

import array
import collections
import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from ._keys import (
    array_contents,
    array_kind,
    ByIdentity,
    float_bits,
    hashed,
    Identity,
    memory_key,
    snapshot_key,
    StaticArray,
)
from ._nodes import ARRAY_KINDS, node_of, NodeKind, parts_in_static, reads_dict
from ._parts import (
    attributes_getter,
    builtin_key,
    BUILTIN_PARTS,
    deque_parts,
    extra_attributes,
    generated_fields,
    has_other_parts,
    hashed_fields,
    is_identity_type,
    items,
    may_have_unit,
    MUTABLE_PARTS,
    owner_of,
    parts_beside_eq,
    parts_by_base,
    PURE_TYPES,
    read_attributes,
    set_parts,
    SUBCLASS_PARTS,
    Tied,
    type_key,
    unhashable_parts,
)
from ._policy import Hashable, Kind, Policy


def _contents(array: Any) -> Any:
    contents = array_contents(array, static_key)
    return (contents, _vars_key(array)) if may_have_unit(type(array)) else contents


def _order_of(x: Any) -> int:
    """What the members of a set are sorted by: not for a NaN, whose hash is its id."""
    if type(x) is float and x != x:
        return 0
    return id(x) if _known_of(type(x))[0] is Kind.IDENTITY else hash(x)


def _set_parts(base: type) -> Callable[[Any], Any]:
    return lambda x: set_parts(base, x, _order_of, static_key)


def _vars_key(x: Any) -> Any:
    return tuple([static_key(v) for v in extra_attributes(x)])


_SUBCLASS_KINDS = {
    tuple: Kind.TUPLE,
    list: Kind.LIST,
    dict: Kind.DICT,
    str: Kind.SCALAR,
    int: Kind.SCALAR,
    float: Kind.SCALAR,
}
_COMPARE_AS_DICTS = (collections.OrderedDict, collections.Counter)


# Of arrays of JAX, which cannot be written to.
_array_keys = ByIdentity()


def array_key(array: Any) -> Any:
    """The key of an array in a static Module."""
    if isinstance(array, Tracer):
        return Identity(array)
    if (known := _array_keys.get(array)) is not None:
        return known
    kind, contents = array_kind(array), _contents(array)
    if not isinstance(array, jax.Array):
        return kind, contents
    return _array_keys.set(array, (kind, (contents, array.sharding)))


def _static_array(array: Any) -> StaticArray:
    """The key of an array in a static field."""
    if isinstance(array, np.ndarray):
        return StaticArray(array, array_kind(array), _contents(array))
    kind, contents = array_key(array) if array.size == 1 else (array_kind(array), None)
    return StaticArray(array, kind, contents)


_PARTS = functools.partial(Policy, Kind.PARTS)
_KEY = functools.partial(Policy, Kind.KEY)
_ASKED = functools.partial(_PARTS, hashable=Hashable.ASK, mutable=True)
_EXACT: dict[type, Policy] = {
    type(None): Policy(Kind.IDENTITY),
    bool: Policy(Kind.IDENTITY),
    type(Ellipsis): Policy(Kind.IDENTITY),
    type(NotImplemented): Policy(Kind.IDENTITY),
    type: Policy(Kind.IDENTITY),
    types.FunctionType: Policy(Kind.IDENTITY),
    types.ModuleType: Policy(Kind.IDENTITY),
    int: Policy(Kind.INT),
    float: Policy(Kind.FLOAT),
    complex: Policy(Kind.COMPLEX),
    str: Policy(Kind.STR),
    bytes: Policy(Kind.BYTES),
    **dict.fromkeys(PURE_TYPES, Policy(Kind.PURE)),
    **{cls: _PARTS(parts, Hashable.ASK) for cls, parts in BUILTIN_PARTS.items()},
    **{cls: _ASKED(parts) for cls, parts in MUTABLE_PARTS.items()},
    tuple: Policy(Kind.TUPLE, hashable=Hashable.AS_PARTS),
    list: Policy(Kind.LIST, hashable=Hashable.NO, mutable=True),
    dict: Policy(Kind.DICT, hashable=Hashable.NO, mutable=True),
    set: _PARTS(_set_parts(set), Hashable.NO, mutable=True),
    frozenset: _PARTS(_set_parts(frozenset)),
    Tied: _KEY(lambda x: x.key, mutable=True),  # a member may be anything
    bytearray: _KEY(bytes, Hashable.NO, mutable=True),
    memoryview: _KEY(memory_key, Hashable.ASK, mutable=True),
    collections.deque: _PARTS(deque_parts, Hashable.NO, mutable=True),
    # `==` compares numbers, whatever their type.
    array.array: _KEY(lambda x: (x.typecode, x.tobytes()), Hashable.NO, mutable=True),
    types.MethodType: Policy(Kind.METHOD),
    types.BuiltinFunctionType: _KEY(builtin_key),
}
_METACLASSES = tuple({type(cls) for cls in _EXACT})  # others may have any `__eq__`


def _fields_policy(cls: type, names: list[str]) -> Policy:
    hashable = Hashable.ASK
    if cls.__hash__ is None:
        hashable = Hashable.NO
    elif hashed_fields(cls) == names:
        hashable = Hashable.AS_PARTS
    kind = Kind.FIELDS if reads_dict(cls, names) else Kind.ATTRIBUTES
    return Policy(kind, tuple(names), hashable, mutable=True)


def _numpy_policy(cls: type) -> Policy | None:
    if issubclass(cls, Tracer):
        return Policy(Kind.IDENTITY, hashable=Hashable.NO)
    if issubclass(cls, np.dtype):
        if cls is type(np.dtype([("x", int)])):
            # The names of its fields can be written to.
            return _KEY(lambda x: (str(x), x.itemsize, x.alignment), mutable=True)
        return Policy(Kind.PURE)
    if issubclass(cls, np.generic):
        if issubclass(cls, np.void):  # a record, whose fields can be written to
            return _KEY(lambda x: (static_key(x.dtype), _contents(x)), mutable=True)
        has_unit = may_have_unit(cls)
        if has_unit or cls in (np.longdouble, np.clongdouble):
            return _KEY(lambda x: (x.dtype, _contents(x)), mutable=has_unit)
        return _KEY(lambda x: (x.dtype, x.tobytes()))
    if issubclass(cls, np.ndarray):
        return _KEY(_static_array, Hashable.NO, mutable=True)
    if issubclass(cls, jax.Array):
        return _KEY(_static_array, Hashable.NO)
    return None


# Whose `__eq__` compares them as pytrees; with the classes of what is jitted.
COMPARED_AS_NODES: list[type] = [eqx.Module]


def choose_policy(cls: type) -> Policy:
    """The policy for the values of a type that `_EXACT` does not have."""
    if issubclass(cls, type):
        # Of JAX's scalar types, such as `jnp.float32`, there is one each.
        alone = cls.__eq__ is type.__eq__ or cls.__module__.startswith("jax.")
        return Policy(Kind.IDENTITY) if alone else Policy(Kind.OPAQUE, mutable=True)
    if (policy := _numpy_policy(cls)) is not None:
        return policy
    if (parts := parts_by_base(cls)) is not None:
        return _ASKED(parts)
    if is_identity_type(cls):
        return Policy(Kind.IDENTITY)
    eq_owner = owner_of(cls, "__eq__")
    if issubclass(cls, enum.Enum) and eq_owner.__module__ == "builtins":
        return Policy(Kind.IDENTITY)
    if any(eq_owner is known for known in COMPARED_AS_NODES):
        return Policy(Kind.NODE, None, Hashable.ASK, mutable=True)
    if (parts := parts_beside_eq(cls, opaque_key)) is not None:
        return _ASKED(parts)
    is_builtin = type(eq_owner) is type
    if is_builtin and (eq_owner in SUBCLASS_PARTS or eq_owner in _COMPARE_AS_DICTS):
        base = dict if eq_owner in _COMPARE_AS_DICTS else eq_owner
        if base is tuple and cls.__dictoffset__ == 0:
            same_hash = cls.__hash__ is tuple.__hash__
            hashable = Hashable.AS_PARTS if same_hash else Hashable.ASK
            return Policy(Kind.TUPLE, hashable=hashable)
        kind = _SUBCLASS_KINDS.get(base, Kind.PARTS)
        if has_other_parts(cls):
            kind = Kind.PARTS
        # (`ASK` for other subclasses of `tuple`: their attributes need no hash.)
        has_none = cls.__hash__ is base.__hash__ is None
        hashable = Hashable.NO if has_none else Hashable.ASK
        return Policy(kind, SUBCLASS_PARTS[base], hashable, mutable=True)
    if is_builtin and eq_owner in (set, frozenset):
        return _ASKED(_set_parts(eq_owner))
    if (names := generated_fields(cls)) is not None:
        return _fields_policy(cls, names)
    if cls.__hash__ is None:
        if dataclasses.is_dataclass(cls):
            return _KEY(_unhashable_dataclass_key, Hashable.NO, mutable=True)
        return _PARTS(unhashable_parts, Hashable.NO, mutable=True)
    return Policy(Kind.OPAQUE, hashable=Hashable.ASK, mutable=True)


def opaque_key(x: Any) -> Any:
    """The key of a value that has a `__hash__`, which may raise.

    Equinox never asks for the hash of what is in a static field.
    """
    if (key := hashed(x)) is not None:
        return key
    is_dataclass = dataclasses.is_dataclass(x)
    return _unhashable_dataclass_key(x) if is_dataclass else snapshot_key(x)


def _unhashable_dataclass_key(x: Any) -> Any:
    """By a copy, if `==` finds it equal; else by parts."""
    snapshot = snapshot_key(x)
    if snapshot.snapshot is not x:
        return snapshot
    names = [f.name for f in dataclasses.fields(x)]
    return tuple(map(static_key, read_attributes(names, x)))


class _Known(NamedTuple):
    """What is known about a type: its policy, and what follows from it."""

    kind: Kind
    data: Any
    hashable: Hashable
    mutable: bool
    # Whether the type stands for itself on a trail: this must not keep it alive.
    by_type: bool
    # Whether values that are compared by identity have the `__eq__` of `object`.
    plain: bool
    # Of `FIELDS` and `ATTRIBUTES`: reads them, of which the class may make properties.
    get: Any
    # As it was when the policy was chosen: a class may be given another.
    eq: Any
    hash: Any


_known = ByIdentity()


def _known_of(cls: type) -> _Known:
    entry = _known.entries.get(id(cls))  # as `ByIdentity.get`
    if entry is not None and entry[0]() is cls:
        found = entry[1]
        if found.eq is cls.__eq__ and found.hash is cls.__hash__:
            return found
    # First, since another thread may change them meanwhile.
    eq, hash_ = cls.__eq__, cls.__hash__
    exact = _EXACT.get(cls) if any(type(cls) is x for x in _METACLASSES) else None
    policy = choose_policy(cls) if exact is None else exact
    plain = is_identity_type(cls)
    by_type = type_key(cls) is cls
    fields = policy.kind is Kind.FIELDS or policy.kind is Kind.ATTRIBUTES
    get = attributes_getter(policy.data) if fields else None
    known = _Known(*policy, by_type, plain, get, eq, hash_)
    return _known.set(cls, known)


def policy_of(cls: type, changed: bool = False) -> Policy:
    """The policy for the values of a type; chosen anew if the type may have changed."""
    if changed:
        _known.entries.pop(id(cls), None)
    return Policy(*_known_of(cls)[:4])


# Types whose values stand on a trail as they are: equal only if they are the same. By
# id, since a class need not have a hash; they are never gone.
ATOMS = frozenset(map(id, (int, str, bytes, bool, type(None), types.FunctionType)))
_WITHOUT_PARTS = ATOMS | {id(float)}
# Parts of a static that are written each time they occur.
_FEW_COMPOUNDS = 16
# The length of a trail at which JAX is asked whether the tree is finite.
LONG_TRAIL = 10_000


# --- the trail of a static ---------------------------------------------------------


class UnhashableStatic(TypeError):
    """A static leaf that cannot be hashed."""


# Members of an `Enum`, which are slow to look up.
_IDENTITY_KIND, _PURE_KIND, _COMPLEX_KIND = Kind.IDENTITY, Kind.PURE, Kind.COMPLEX
_OPAQUE_KIND, _KEY_KIND, _TUPLE_KIND = Kind.OPAQUE, Kind.KEY, Kind.TUPLE
_LIST_KIND, _DICT_KIND, _FIELDS_KIND = Kind.LIST, Kind.DICT, Kind.FIELDS
_NODE_KIND, _METHOD_KIND, _ATTRIBUTES_KIND = Kind.NODE, Kind.METHOD, Kind.ATTRIBUTES
_YES, _AS_PARTS = Hashable.YES, Hashable.AS_PARTS
_STRUCT = jax.ShapeDtypeStruct


def _compound_parts(x: Any, kind: Kind, data: Any, get: Any) -> Sequence[Any]:
    """The parts of a static that is compared part by part."""
    if kind is _FIELDS_KIND or kind is _ATTRIBUTES_KIND:
        try:
            return get(x)
        except AttributeError:
            return read_attributes(data, x)
    if kind is _TUPLE_KIND and data is None:
        return x if type(x) is tuple else list(tuple.__iter__(x))
    if kind is _LIST_KIND and data is None:
        return x
    if kind is _DICT_KIND and data is None:
        return items(dict, x)
    if kind is _NODE_KIND:
        return _node_parts(x)
    if kind is _METHOD_KIND:
        # As `==` of two methods: the very same object, and the same function.
        return Identity(x.__self__), x.__func__
    return list(data(x))


@dataclasses.dataclass(slots=True, eq=False)
class _Child:
    """A child of a node in a static: read as a pytree as well, and not as a static."""

    value: Any


def _node_parts(x: Any) -> list[Any]:
    static, children = parts_in_static(x, node_of(x))
    below = [v if id(type(v)) in _WITHOUT_PARTS else _Child(v) for v in children]
    return [*static, *below]


def _policy_of_child(x: Any, kind: Kind, data: Any) -> tuple[Kind, Any]:
    """How the child of a node is compared; given how it were if it was a static."""
    node = node_of(x).kind
    if node in ARRAY_KINDS:
        return _KEY_KIND, array_key
    is_static = node == NodeKind.STATIC or node == NodeKind.STRUCT
    return (kind, data) if is_static else (_NODE_KIND, None)


def append_atoms(trail: list[Any], values: Sequence[Any]) -> bool:
    """Write values on a trail, if none has parts. Returns whether that was so.

    Their types come first, unlike those of values that are written one by one, so the
    two cannot be mixed up: no atom is a type.
    """
    classes = list(map(type, values))
    if not _WITHOUT_PARTS.issuperset(map(id, classes)):
        return False
    trail += classes
    if float in classes:
        values = [float_bits(x) if type(x) is float else x for x in values]
    trail += values
    return True


def append_static(trail: list[Any], x: Any, *, leaf: bool) -> bool:
    """Write a static value on a trail, and return whether it can be changed in place.

    That is, any part of it. Raises `UnhashableStatic` for a `leaf` of a pytree without
    a hash, which it must have.
    """
    cls = type(x)
    if id(cls) in ATOMS:
        trail += (cls, x)
        return False
    if cls is tuple:  # most have no parts that have parts: 0.6 us for 1.4
        before = len(trail)
        trail += (cls, len(x))
        if append_atoms(trail, x):
            return False
        del trail[before:]
    known = _known_of(cls)
    if known[0] is _IDENTITY_KIND and known[2] is _YES:
        key = cls if known[4] else Identity(cls)
        trail += (key, x if known[5] else Identity(x))
        return False
    return _append_compound(trail, x, leaf)


def _append_compound(trail: list[Any], x: Any, leaf: bool) -> bool:
    """Write a value that may have parts.

    Iterative, since statics may be nested deeper than Python's limit, and linear: after
    a few, a part that occurs again is written as the place where it did before.
    """
    mutable, n_compounds = False, 0
    root, pending, start = x, [x], len(trail)
    limit = start + LONG_TRAIL
    # By the id of a part, which is kept alive, and whether it is read as a node: what
    # is below a node is not read as a static.
    seen: dict[tuple[int, bool], tuple[int, Any]] = {}
    while pending:
        x = pending.pop()
        cls = type(x)
        if id(cls) in _WITHOUT_PARTS:
            trail += (cls, float_bits(x) if cls is float else x)
            continue
        is_child = cls is _Child
        if is_child:
            x = x.value
            cls = type(x)
        kind, data, hashable, is_mutable, by_type, plain, get, _, _ = _known_of(cls)
        trail.append(cls if by_type else Identity(cls))
        mutable = mutable or is_mutable
        if leaf and hashable is not _YES and hashable is not _AS_PARTS:
            # A class with a `__hash__` of its own need not ask all of its parts.
            leaf = hashable is Hashable.NO
            _check_hashable(x if leaf else root)
        if is_child:
            kind, data = _policy_of_child(x, kind, data)
        if kind >= _TUPLE_KIND and kind is not _KEY_KIND:  # part by part
            key = (id(x), kind is _NODE_KIND)
            if key in seen:
                trail.append(("again", seen[key][0]))
                continue
            parts = _compound_parts(x, kind, data, get)
            trail.append(~len(parts) if kind is _NODE_KIND else len(parts))
            if not append_atoms(trail, parts):
                n_compounds += 1
                if n_compounds > _FEW_COMPOUNDS:
                    seen[key] = len(trail) - start, x
                pending += reversed(parts)
                if len(trail) > limit:
                    # A flatten function may give new nodes without end.
                    jtu.tree_structure([v.value for v in pending if type(v) is _Child])
                    limit = 2 * len(trail)
        elif kind is _IDENTITY_KIND:
            trail.append(x if plain else Identity(x))
        elif kind is _PURE_KIND:
            # Its `==` does not tell a dimension 2 from 2.0 or NumPy's 2.
            trail += (x, *map(type, x.shape)) if cls is _STRUCT else (x,)
        elif kind is _COMPLEX_KIND:
            trail += (float_bits(x.real), float_bits(x.imag))
        elif kind is _OPAQUE_KIND:
            trail.append(opaque_key(x))
        else:
            trail.append(data(x))
    return mutable


def _check_hashable(x: Any) -> None:
    try:
        hash(x)
    except TypeError as e:
        raise UnhashableStatic(str(e)) from e


def static_key(x: Any) -> tuple[Any, ...]:
    """A hashable stand-in for a static value, equal for values that are the same."""
    trail: list[Any] = []
    append_static(trail, x, leaf=False)
    return tuple(trail)
