"""What `==` compares of a value: its parts, read by the base type's own means.

A subclass may override `__iter__`, `items` or `__getattr__`; what it then shows need
not be what it holds, and looking may change it.
"""

import array
import collections
import contextlib
import contextvars
import dataclasses
import datetime
import decimal
import functools
import gc
import operator
import pathlib
import re
import types
import uuid
import weakref
from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    MappingView,
    Sequence,
    Set as AbstractSet,
)
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np

from ._keys import ByIdentity, Identity, snapshot_key


# The bases of a class. Not `cls.__mro__`, which a metaclass may replace: what C reads
# of a value depends on it.
mro_of: Callable[[type], tuple[type, ...]] = vars(type)["__mro__"].__get__

# The placeholder for a missing attribute.
MISSING = type("Missing", (), {"__slots__": ()})()


# Stands before the attributes of an instance of a subclass.
_ATTRIBUTES = type("Attributes", (), {"__slots__": ()})()


def extra_attributes(x: Any) -> tuple[Any, ...]:
    """The attributes that an instance of a subclass has beside its contents."""
    slots = _has_slots(type(x))
    if type(x).__dictoffset__ == 0 and not slots:
        return ()
    try:
        found = object.__getattribute__(x, "__dict__")
    except AttributeError:
        found = {}
    if any(_is_cached(type(x), name) for name in found):
        found = {k: v for k, v in found.items() if not _is_cached(type(x), k)}
    if slots:
        found = {**found, **_in_slots(x)}
    # Not as they are: the last element of a list may be such a dictionary.
    return (_ATTRIBUTES, found) if found else ()


def _slots_of(cls: type) -> dict[str, Any]:
    """What reads the slots that classes in Python give their instances."""
    return {
        f"{base.__qualname__}.{name}": value
        for base in mro_of(cls)
        if "__slots__" in vars(base)
        for name, value in vars(base).items()
        if type(value) is types.MemberDescriptorType
    }


_with_slots = ByIdentity()


def _has_slots(cls: type) -> bool:
    known = _with_slots.get(cls)
    return _with_slots.set(cls, bool(_slots_of(cls))) if known is None else known


def has_other_parts(cls: type) -> bool:
    """Whether a subclass of a container has more than its contents and a dictionary.

    An order, or a factory; or attributes in slots.
    """
    ordered = collections.OrderedDict, collections.defaultdict
    return issubclass(cls, ordered) or _has_slots(cls)


def may_have_unit(cls: type) -> bool:
    """Whether a class of arrays may give them attributes, such as a unit."""
    if issubclass(cls, np.generic):
        return cls.__dictoffset__ != 0 or _has_slots(cls)
    is_subclass = issubclass(cls, np.ndarray) and cls is not np.ndarray
    return is_subclass and not issubclass(cls, np.ma.MaskedArray)


def _in_slots(x: Any) -> dict[str, Any]:
    found = {}
    for name, slot in _slots_of(type(x)).items():
        with contextlib.suppress(AttributeError):
            found[name] = slot.__get__(x)
    return found


def _is_cached(cls: type, name: str) -> bool:
    """Whether an attribute is what a `functools.cached_property` has kept.

    It comes from the others. And a trace that asks for it would else change its static.
    """
    for base in mro_of(cls):
        if name in base.__dict__:
            return isinstance(base.__dict__[name], functools.cached_property)
    return False


def items(base: type, x: Any) -> list[Any]:
    """The keys and values of a mapping, in turn."""
    out: list[Any] = []
    for pair in base.items(x):  # pyright: ignore[reportAttributeAccessIssue]
        out += pair
    return out


_factory_of = vars(collections.defaultdict)["default_factory"].__get__
_maxlen_of = vars(collections.deque)["maxlen"].__get__


def dict_parts(x: Any) -> list[Any]:
    """Those of a dictionary of any kind."""
    if isinstance(x, collections.OrderedDict):
        out = items(collections.OrderedDict, x)
    else:
        out = items(dict, x)
        if isinstance(x, collections.defaultdict):
            out.append(_factory_of(x))  # which `==` does not look at
    return [*out, *extra_attributes(x)]


def deque_parts(x: Any) -> list[Any]:
    """Those of a deque."""
    return [_maxlen_of(x), *collections.deque.__iter__(x), *extra_attributes(x)]


def _time_parts(base: type) -> Callable[[Any], tuple[Any, ...]]:
    """What it is made from: its digits and fold, its zone."""
    reduce = vars(base)["__reduce_ex__"]
    return lambda x: reduce(x, 4)[1]


def _array_parts(x: Any) -> list[Any]:
    typecode = vars(array.array)["typecode"].__get__(x)
    return [typecode, array.array.tobytes(x), *extra_attributes(x)]


def _and_attributes(parts: Callable[[Any], Iterable[Any]]) -> Callable[[Any], Any]:
    return lambda x: [*parts(x), *extra_attributes(x)]


def _decimal_parts(x: Any) -> tuple[str]:
    return (decimal.Decimal.__str__(x),)


_datetime_parts = _time_parts(datetime.datetime)
_clock_parts = _time_parts(datetime.time)


def _scalar_parts(base: type, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: [convert(x), *extra_attributes(x)]


# Of subclasses that compare as the base class does.
SUBCLASS_PARTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    tuple: lambda x: [*tuple.__iter__(x), *extra_attributes(x)],
    list: lambda x: [*list.__iter__(x), *extra_attributes(x)],
    dict: dict_parts,
    collections.deque: deque_parts,
    int: _scalar_parts(int, int.__int__),
    float: _scalar_parts(float, float.__float__),
    complex: _scalar_parts(
        complex,
        lambda x: complex(
            vars(complex)["real"].__get__(x), vars(complex)["imag"].__get__(x)
        ),
    ),
    str: _scalar_parts(str, lambda x: str.__str__(x)),
    bytes: _scalar_parts(bytes, lambda x: bytes(memoryview(x))),
    bytearray: _scalar_parts(bytearray, lambda x: bytes(memoryview(x))),
    array.array: _array_parts,
    decimal.Decimal: _and_attributes(_decimal_parts),
    datetime.datetime: _and_attributes(_datetime_parts),
    datetime.time: _and_attributes(_clock_parts),
}


def _treedef_parts(x: Any) -> list[Any]:
    """What each node is, as for `pickle`."""
    nodes = x.__getstate__()[1]  # after the registry
    # The keys of a dictionary are in a new list. What else is a list has a class.
    return [
        (*node[:2], tuple(node[2]), *node[3:])
        if type(node[2]) is list and node[3] is None
        else node
        for node in nodes
    ]


# Types of values that cannot be changed, and whose `==` compares all of them.
PURE_TYPES = (
    Identity,
    datetime.date,
    datetime.timedelta,
    jax.ShapeDtypeStruct,
    jax.sharding.NamedSharding,
    jax.sharding.SingleDeviceSharding,
    pathlib.PurePosixPath,
    pathlib.PosixPath,
    re.Pattern,
)

# Of types whose `==` compares less than what a program can see of them: what a range
# goes through, a number without its digits, an instant without its zone, static data by
# a `==` for which 1 is 1.0.
BUILTIN_PARTS: dict[type, Callable[[Any], Sequence[Any]]] = {
    range: lambda x: (x.start, x.stop, x.step),
    slice: lambda x: (x.start, x.stop, x.step),  # has a hash since Python 3.12 only
    decimal.Decimal: _decimal_parts,
    datetime.datetime: _datetime_parts,
    datetime.time: _clock_parts,
    datetime.timezone: lambda x: (x.utcoffset(None), x.tzname(None)),
    jtu.PyTreeDef: _treedef_parts,
    jtu.DictKey: lambda x: (x.key,),
    pathlib.PureWindowsPath: lambda x: (str(x),),
    pathlib.WindowsPath: lambda x: (str(x),),
    uuid.UUID: lambda x: (x.int, x.is_safe),
}


def _reference_parts(x: Any) -> tuple[Any, ...]:
    """Which object it refers to, which this does not keep alive, if that is there.

    `==` asks these objects, and a dead reference has the hash that it had.
    """
    found = weakref.ref.__call__(x)
    # The one without a callback: there is one for each object.
    key = None if found is None else Identity(weakref.ref(found))
    return key, *extra_attributes(x)


# Those that change with what they show. Of the view of a dictionary, `==` does not look
# at the order; of a proxy, at the type of what it stands for.
MUTABLE_PARTS: dict[type, Callable[[Any], Sequence[Any]]] = {
    **{
        type(view()): list
        for cls in (dict, collections.OrderedDict)
        for view in (cls().keys, cls().values, cls().items)
    },
    types.MappingProxyType: gc.get_referents,
    types.SimpleNamespace: lambda x: [vars(x)],
    contextvars.Context: lambda x: items(contextvars.Context, x),
    weakref.WeakSet: lambda x: [x.data],
    weakref.WeakKeyDictionary: lambda x: [x.data],
    weakref.WeakValueDictionary: lambda x: [x.data],
}


def is_identity_type(cls: type) -> bool:
    """Whether instances of `cls` are only equal to themselves."""
    return (
        cls.__eq__ is object.__eq__
        and cls.__ne__ is object.__ne__
        and cls.__hash__ is object.__hash__
    )


def type_key(cls: type) -> Any:
    """What stands for a type on a trail, where it is asked for its hash and `==`."""
    return cls if type(cls) is type or is_identity_type(type(cls)) else Identity(cls)


@dataclasses.dataclass(slots=True, eq=False)
class Tied:
    """The key of a set of which two members are the same to `set_parts`."""

    key: Any


def set_parts(
    base: type, x: Any, order_of: Callable[[Any], int], key_of: Callable[[Any], Any]
) -> list[Any]:
    """The members of a set, in the order of what is asked about each.

    Part by part, since keys of sets in sets would be made again for each that has them.
    """
    members = [*vars(base)["__iter__"](x)]  # at once: a `__hash__` may change it
    ordered: dict[Any, Any] = {}
    with contextlib.suppress(Exception):  # a hash may raise
        ordered = {order_of(v): v for v in members}
    if len(ordered) == len(members):
        parts = [ordered[i] for i in sorted(ordered)]
    else:
        # Counted, since members that differ may have equal keys: two NaNs.
        counts = collections.Counter([key_of(v) for v in members])
        parts = [Tied(frozenset(counts.items()))]
    return [*parts, *extra_attributes(x)]


def attributes_getter(names: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    """Reads attributes, or raises `AttributeError`."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda x: [getattr(x, name) for name in names]


def read_attributes(names: Iterable[str], x: Any) -> list[Any]:
    """Attributes of which any may not be there."""
    return [getattr(x, name, MISSING) for name in names]


def builtin_key(x: Any) -> Any:
    """The key of a function in C, and what it is bound to."""
    return Identity(x.__self__), x.__qualname__, x.__module__


# What they hold is in attributes.
_WITH_ATTRIBUTES = (
    types.SimpleNamespace,
    collections.UserDict,
    collections.UserList,
    collections.UserString,
    collections.ChainMap,
)


def compares_attributes(cls: type) -> bool:
    """Whether `cls` is one of those, or a subclass that compares as they do."""
    # By identity, and not `issubclass`: a class need not have a hash.
    bases = [base for base in mro_of(cls) if any(base is x for x in _WITH_ATTRIBUTES)]
    eq: Any = cls.__eq__
    name = getattr(eq, "__module__", None), getattr(eq, "__qualname__", None)
    # Looked at by name: few programs import it.
    of_parsers = ("argparse", "Namespace.__eq__"), ("optparse", "Values.__eq__")
    return name in of_parsers or any(eq is base.__eq__ for base in bases)


def parts_by_base(cls: type) -> Callable[[Any], Sequence[Any]] | None:
    """What is compared of the values of a type that has a base of a known kind."""
    bases = mro_of(cls)
    if compares_attributes(cls) or any(base is MappingView for base in bases):
        return extra_attributes
    if any(base is weakref.ref for base in bases):
        return _reference_parts
    if cls.__base__ is tuple and hasattr(cls, "n_sequence_fields"):
        return lambda x: x.__reduce__()[1]  # such as a time with its zone
    return None


def _alias_parts(x: Any) -> tuple[Any, ...]:
    return getattr(x, "__args__", ()), getattr(x, "__metadata__", ())


def parts_beside_eq(
    cls: type, key_of: Callable[[Any], Any]
) -> Callable[[Any], Sequence[Any]] | None:
    """What is compared of the values of a type whose `==`, by `key_of`, is not enough.

    Mappings and sets of the user's own, whose `==` is that of `collections.abc`, which
    takes 1 for 1.0; types such as `Annotated[int, 1]`, or `int | str`, of which `==`
    ignores the order; classes of attrs that compare a field in a way of its own
    (`eq=attrs.cmp_using(...)`), and the others by `==`.
    """
    eq: Any = cls.__eq__
    owner = owner_of(cls, "__eq__")
    is_alias = owner is types.GenericAlias or owner is types.UnionType
    fields = _attrs_fields(cls) or ()
    if eq is Mapping.__eq__ or eq is AbstractSet.__eq__:
        beside = extra_attributes
    elif is_alias or owner.__module__ == "typing":
        beside = _alias_parts
    elif any(f.eq_key is not None for f in fields):
        names = [f.name for f in fields if f.eq and f.eq_key is None]
        beside = functools.partial(read_attributes, names)
    else:
        return None

    def parts(x: Any) -> list[Any]:
        key = key_of(x)  # first, since `__hash__` may keep its result in an attribute
        return [*beside(x), key]  # last, since `==` of arrays may be an error

    return parts


def unhashable_parts(x: Any) -> list[Any]:
    """A copy, if `==` finds it equal; else attributes as well.

    Of arrays in those, `==` may be an error.
    """
    snapshot = snapshot_key(x)
    return [*(extra_attributes(x) if snapshot.snapshot is x else ()), snapshot]


def owner_of(cls: type, name: str) -> type:
    """The class that a special method of `cls` comes from."""
    return next(base for base in mro_of(cls) if name in vars(base))


def _dataclass_fields(cls: type, method: str) -> Sequence[Any] | None:
    """The fields that `dataclasses` wrote a method for; `None` if it did not."""
    code = getattr(getattr(cls, method), "__code__", None)
    is_theirs = getattr(code, "co_qualname", "") == f"__create_fn__.<locals>.{method}"
    if not is_theirs or not hasattr(cls, "__dataclass_fields__"):
        return None
    owner: Any = owner_of(cls, method)
    return dataclasses.fields(owner if dataclasses.is_dataclass(owner) else cls)


def _attrs_fields(cls: type) -> Sequence[Any] | None:
    """The fields of a class if attrs generated its `__eq__`, otherwise `None`."""
    code = getattr(cls.__eq__, "__code__", None)
    if code is None or not code.co_filename.startswith("<attrs generated"):
        return None
    return getattr(owner_of(cls, "__eq__"), "__attrs_attrs__", ())


def generated_fields(cls: type) -> list[str] | None:
    """The fields that a generated `__eq__` compares; `None` if it was not generated."""
    fields: Any = _dataclass_fields(cls, "__eq__")
    if fields is not None:
        return [f.name for f in fields if f.compare]
    fields = _attrs_fields(cls)
    if fields is not None and all(f.eq_key is None for f in fields):
        return [f.name for f in fields if f.eq]
    eq_module = getattr(cls.__eq__, "__module__", None) or ""
    if eq_module in ("pydantic.main", "pydantic.root_model"):
        fields = getattr(cls, "model_fields")  # noqa: B009
        return [*fields, "__pydantic_extra__", "__pydantic_private__"]
    is_struct = hasattr(cls, "__struct_fields__")
    if is_struct and owner_of(cls, "__eq__").__module__.split(".")[0] == "msgspec":
        return list(cls.__struct_fields__)
    return None


def hashed_fields(cls: type) -> list[str] | None:
    """The fields that a `__hash__` made by `dataclasses` goes over; `None` if other."""
    fields: Any = _dataclass_fields(cls, "__hash__")
    if fields is None:
        return None
    return [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
