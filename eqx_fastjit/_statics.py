"""The contract for static arguments (`docs/contract.md`) as a program.

A *reader* puts a value onto the *trail* of a call: all that it is, but for its arrays.
Two calls with the same trail have the same statics, and the same structure. This file
says which reader a type has, and comments name the rules of the contract by their
numbers. There are two forms of the readers, by the same names: `csrc/read.c`, and those
of `Walk`, by which the reference engine compares calls, and errors say what differs.
"""

import contextlib
import dataclasses
import enum
import struct
import sys
import types
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.tree_util import all_leaves, tree_flatten, tree_unflatten

from ._private import flatten_one_level, instance_dict, Tracer


# (The tracer of a `jax.Ref` is a `Tracer`, and no `jax.Array`.)
_ARRAY_TYPES = (jax.Array, np.ndarray, np.generic, Tracer)


def is_array(x: Any, abstract: bool = False) -> bool:
    """Whether a leaf of a call, or of its result, is an array.

    If `abstract`, a `jax.ShapeDtypeStruct` may stand for one.

    A proxy (of `wrapt`, say) claims to be an instance of the class of what it stands
    for. JAX takes none, and proxies of arrays and of others are of one type.
    """
    if type(x) is jax.ShapeDtypeStruct:
        return abstract
    return isinstance(x, _ARRAY_TYPES) and x.__class__ is type(x)


# What shows something else, which may change, and is not pickled.
_VIEWS: dict[type, Any] = {
    types.MappingProxyType: dict,
    type({}.keys()): tuple,
    type({}.items()): tuple,
    memoryview: lambda x: (x.format, x.shape, x.tobytes()),
}


def state_of(x: Any) -> Any:
    """What an object would be pickled as, or the object itself if it would not be.

    Of an array or scalar of NumPy: its dtype, shape and bytes. Of a view: a copy.
    """
    copy = _VIEWS.get(type(x))
    if copy is not None:
        return (copy(x),)

    # A subclass may have a mask, or a unit.
    is_numpy = type(x) is np.ndarray or isinstance(x, np.generic)
    if is_numpy and not x.dtype.hasobject:
        return x.dtype, x.shape, x.tobytes()

    try:
        reduced = x.__reduce_ex__(4)
    except RecursionError:
        raise
    except Exception:
        return x

    if not isinstance(reduced, tuple):
        return x  # the name of a global
    make, args, *rest = reduced
    state, iterators = rest[:1], rest[1:3]
    items = [None if x is None else list(x) for x in iterators]
    return make, args, *state, *items


# --- the reader of a type -------------------------------------------------------------


class Reader(NamedTuple):
    """How values of one type are read."""

    # What it is called in `read.c` and `Walk`.
    name: str
    # Whether JAX flattens the type, or takes it for an array. Otherwise a value, and
    # all below it, is static.
    is_node: bool = False
    # Whether a static of this type can be changed in place. Frozen classes count, too:
    # `object.__setattr__` changes their instances, and asking costs a comparison.
    is_mutable: bool = False
    # Whether its values are compared by an `__eq__` or a state of their own.
    may_be_equal: bool = False
    # The names of its fields, the first `n_dynamic` of which are not static.
    names: tuple[str, ...] = ()
    n_dynamic: int = 0


# Of exactly these types.
_EXACT = {
    type(None): Reader("same", is_node=True),
    tuple: Reader("tuple", is_node=True),
    list: Reader("list", is_node=True, is_mutable=True),
    dict: Reader("dict", is_node=True, is_mutable=True),
    bool: Reader("same"),
    set: Reader("set", is_mutable=True),
    frozenset: Reader("set"),
    jax.ShapeDtypeStruct: Reader("struct", is_node=True),
}

# Of these types, and of subclasses that compare as they do.
_VALUES: dict[type, Reader] = {
    int: Reader("int"),
    float: Reader("float"),
    complex: Reader("complex"),
    str: Reader("text"),
    bytes: Reader("text"),
    tuple: Reader("tuple"),
}


def reader_of(x: Any) -> Reader:
    """The reader for the type of a value. Asked once for each type."""
    exact = _EXACT.get(type(x))
    return exact or _array_reader(x) or _node_reader(x) or _static_reader(x)


def _array_reader(x: Any) -> Reader | None:
    if isinstance(x, Tracer):
        return Reader("tracer", is_node=True)
    if not is_array(x):
        return None
    if isinstance(x, np.ndarray):
        return Reader("numpy", is_node=True, is_mutable=True)
    if isinstance(x, np.generic):
        # A row of a structured array can be written to.
        return Reader("scalar", is_node=True, is_mutable=isinstance(x, np.void))
    return Reader("array", is_node=True)


def is_flattened(x: Any) -> bool:
    """Whether JAX flattens a value, but by `jax.tree_util.register_static`."""
    flat = flatten_one_level(x)
    return flat is not None and (flat[1] is not x or bool(flat[0]))


def sorted_keys(keys: list[Any]) -> tuple[list[Any], bytes] | None:
    """The keys of a dictionary in JAX's order; and the place of each there, for C.

    `None` unless all are texts, or all are numbers: of others it is not known whether
    JAX's order is the ascending one. (Of these `_engine.py` checks it.)
    """
    if {*map(type, keys)} not in ({str}, {int}):
        return None
    ordered = sorted(keys)
    places = {key: i for i, key in enumerate(ordered)}
    return ordered, struct.pack(f"{len(keys)}n", *map(places.get, keys))


def _node_reader(x: Any) -> Reader | None:
    if not is_flattened(x):
        return None
    reader = Reader("node", is_node=True, is_mutable=True)
    if isinstance(x, eqx.Module):
        return _module_reader(type(x)) or reader
    if isinstance(x, tuple):
        children, aux = flatten_one_level(x)
        # A named tuple, unless it is registered with a flatten function of its own.
        if aux is type(x) and [*map(id, children)] == [*map(id, x)]:
            return Reader("tuple", is_node=True)
    return reader


def _module_reader(cls: type) -> Reader | None:
    """By its fields, if these are what JAX flattens it to, in this order."""
    fields = dataclasses.fields(cls)
    static = [f.name for f in fields if f.metadata.get("static", False)]
    dynamic = [f.name for f in fields if f.name not in static]

    values = {f.name: object() for f in fields}
    try:
        # Not the user's instance, of which two fields may have the same value.
        probe = object.__new__(cls)
        instance_dict(probe).update(values)
        children, _ = flatten_one_level(probe)
    except Exception:  # a subclass of a builtin class
        return None
    if [*map(id, children)] != [id(values[name]) for name in dynamic]:
        return None

    names = (*dynamic, *static)
    return Reader("module", True, True, names=names, n_dynamic=len(dynamic))


def _static_reader(x: Any) -> Reader:
    cls = type(x)
    if isinstance(x, type | enum.Enum) or cls.__eq__ is object.__eq__:
        return Reader("same")

    for base, reader in _VALUES.items():
        if issubclass(cls, base) and cls.__eq__ is base.__eq__:
            return reader

    fields = generated_fields(cls)
    if fields is not None:
        return Reader("fields", is_mutable=True, may_be_equal=True, names=fields)
    if has_hash(x):
        return Reader("hashed", may_be_equal=True)
    return Reader("state", is_mutable=True, may_be_equal=True)


def has_hash(x: Any) -> bool:
    """Whether a value has a hash, whatever its class says."""
    try:
        hash(x)
    except RecursionError:
        raise
    except Exception:
        return False
    return True


def has_only_identity(x: Any) -> bool:
    """Whether a value is no pytree node, and is only equal to itself.

    Runs nothing of its class: no flatten function.
    """
    return type(x).__eq__ is object.__eq__ and all_leaves([x])


def generated_fields(cls: type) -> tuple[str, ...] | None:
    """The fields that an `__eq__` compares which dataclasses or attrs generated.

    `None` if it has another `__eq__`.
    """
    code = getattr(cls.__eq__, "__code__", None)
    if code is None:
        return None
    is_dataclass = code.co_qualname == "__create_fn__.<locals>.__eq__"
    if is_dataclass and dataclasses.is_dataclass(cls):
        return tuple(f.name for f in dataclasses.fields(cls) if f.compare)
    if code.co_filename.startswith("<attrs generated"):
        return tuple(f.name for f in getattr(cls, "__attrs_attrs__", ()) if f.eq)
    return None


# --- trails ---------------------------------------------------------------------------


class _Same:
    """On a trail: this very object."""

    __slots__ = ("object",)

    def __init__(self, x: Any):
        self.object = x

    def __eq__(self, other: Any) -> bool:
        return type(other) is _Same and self.object is other.object

    def __hash__(self) -> int:
        return id(self.object)  # which this holds


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
        if reader.may_be_equal and not as_static and is_flattened(x):
            # Registered since it was first read. Of another object a cache miss would
            # tell, but an equal one hits.
            reader = Reader("node", is_node=True)
        as_static = as_static or not reader.is_node

        if not as_static and is_array(x, self.abstract):
            self.trail.append(_ARRAY)
            self.arrays.append(x)
            return

        if reader.name == "hashed" and not has_hash(x):  # by rule 6 after all
            reader = reader._replace(name="state", is_mutable=True)
        if as_static and reader.is_mutable:
            distance = self._distance_to(x)
            if distance:
                self.trail.append(distance)
                return
            self._being_read = x, self._being_read
            self.mutables.append(x)

        self._read_by(reader, x, as_static)

    def _distance_to(self, x: Any) -> int:
        """How far around a static is that is in itself; 0 if it is not."""
        around, distance = self._being_read, 1
        while around is not None:
            other, around = around
            if other is x:
                return distance
            distance += 1
        return 0

    def _read_by(self, reader: Reader, x: Any, as_static: bool) -> None:
        """By the reader's name, as in `read.c`."""
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


def compared_by_equality(x: Any) -> list[Any]:
    """The statics in a value that are compared by their own `==`."""
    return [item[1] for item in Walk(x).trail if type(item) is tuple]


# By the `id` of a type, as a metaclass may compare its classes by an `__eq__`. Those of
# types that have died are dropped.
_readers: dict[int, Reader] = {}


def known_reader(x: Any) -> Reader:
    """The reader for the type of a value, chosen when it is first read."""
    cls = type(x)
    key = id(cls)
    known = _readers.get(key)
    if known is None:
        known = _readers[key] = reader_of(x)
        weakref.finalize(cls, _readers.pop, key, None).atexit = False
    return known


def forget_readers() -> None:
    """Choose the reader of each type anew."""
    _readers.clear()


# --- pytrees without their arrays -----------------------------------------------------


DYNAMIC = object()  # stands for an array


class Structure(NamedTuple):
    """What stays of a pytree without its arrays, and how to build it again.

    A specialization stores it of its arguments, and the plan of a trace of its result.
    """

    treedef: Any
    # The static leaves, and `DYNAMIC` for each array.
    leaves: tuple[Any, ...]

    def rebuild(self, arrays: Iterable[Any]) -> Any:
        """The pytree again, with these arrays in it."""
        left = iter(arrays)
        leaves = [next(left) if x is DYNAMIC else x for x in self.leaves]
        return tree_unflatten(self.treedef, leaves)

    def is_same(self, other: "Structure") -> bool:
        """Whether all that is static in two of them is the same."""
        # Most are the same objects. Some aux data cannot be compared by `==`.
        with contextlib.suppress(Exception):
            are_same = [*map(id, self.leaves)] == [*map(id, other.leaves)]
            if are_same and self.treedef == other.treedef:
                return True

        def nodes(treedef: Any) -> tuple[Any, ...]:
            return treedef.node_data(), *map(nodes, treedef.children())

        both = [(x.leaves, nodes(x.treedef)) for x in (self, other)]
        then, now = [Walk(x, as_static=True).trail for x in both]
        return then == now


def partition(tree: Any, abstract: bool = True) -> tuple[list[Any], Structure]:
    """The arrays of a pytree, in JAX's order, and the rest."""
    leaves, treedef = tree_flatten(tree)
    rest = tuple(DYNAMIC if is_array(x, abstract) else x for x in leaves)
    arrays = [x for x, kept in zip(leaves, rest, strict=True) if kept is DYNAMIC]
    return arrays, Structure(treedef, rest)
