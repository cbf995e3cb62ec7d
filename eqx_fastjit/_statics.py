"""The contract: when two static arguments are the same.

A trace is valid for the statics it was made with. Statics of different types are never
the same. Two statics of the same type are the same by these rules:

1. **numbers, strings, bytes, `None`:** they have the same value. Floats and complex
   numbers have the same bits;
2. **tuples, named tuples, lists, dictionaries in order, sets, Modules and other pytree
   nodes, dataclasses and attrs classes with a generated `__eq__`:** their parts are the
   same (members of a set by `==`);
3. **classes, functions, enum members, anything with the `__eq__` of `object`, JAX
   arrays:** they are the same object;
4. **NumPy arrays and scalars:** they have the same dtype, shape and bytes;
5. **anything else with a hash:** they have the same hash, and `==` is true. Such an
   object must not change, as Python requires of hashable objects;
6. **anything else** (an `__eq__` and no hash, or a hash that raises): they have the
   same state, as `__reduce_ex__(4)` gives it, or else are the same object.

Rules 2, 4 and 6 notice changes in place. A trace is not used again once a mutable
object that it was made with has changed. The way to compare instances of a class is
chosen once, when the class is first used.

This file says which *reader* a type has. A reader puts a value onto the trail of a
call; two calls with the same trail have the same statics. There are two forms of the
readers, by the same names: `csrc/read.c` and `_trails.py`.
"""

import dataclasses
import enum
import types
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.tree_util import all_leaves

from ._private import flatten_one_level, instance_dict, Tracer


# (That of a `jax.Ref` is a `Tracer` only.)
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
    if copy := _VIEWS.get(type(x)):
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
    # After the state come iterators over items.
    return make, args, *rest[:1], *[None if x is None else list(x) for x in rest[1:3]]


# --- the reader of a type -------------------------------------------------------------


class Reader(NamedTuple):
    """How values of one type are read."""

    # What it is called in `read.c` and `_trails.py`.
    name: str
    # Whether JAX flattens the type, or takes it for an array. Otherwise a value, and
    # all below it, is static.
    is_node: bool = False
    # Whether a static of this type can be changed in place. Frozen classes count, too:
    # `object.__setattr__` changes their instances, and asking costs a comparison.
    is_mutable: bool = False
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
        return Reader("scalar", is_node=True)
    return Reader("array", is_node=True)


def is_flattened(x: Any) -> bool:
    """Whether JAX flattens a value, but by `jax.tree_util.register_static`."""
    flat = flatten_one_level(x)
    return flat is not None and (flat[1] is not x or bool(flat[0]))


def _node_reader(x: Any) -> Reader | None:
    if not is_flattened(x):
        return None
    reader = Reader("node", is_node=True, is_mutable=True)
    if isinstance(x, eqx.Module):
        return _module_reader(type(x)) or reader
    if isinstance(x, tuple) and flatten_one_level(x)[1] is type(x):
        return Reader("tuple", is_node=True)  # a named tuple
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
    return Reader("module", True, True, names, n_dynamic=len(dynamic))


def _static_reader(x: Any) -> Reader:
    cls = type(x)
    if isinstance(x, type | enum.Enum) or cls.__eq__ is object.__eq__:
        return Reader("same")
    for base, reader in _VALUES.items():
        if issubclass(cls, base) and cls.__eq__ is base.__eq__:
            return reader
    fields = generated_fields(cls)
    if fields is not None:
        return Reader("fields", is_mutable=True, names=fields)
    if has_hash(x):
        return Reader("hashed")
    return Reader("state", is_mutable=True)


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
