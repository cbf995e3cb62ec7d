"""Classifies types: a pytree node of some kind, an array, or a static."""

import collections
import dataclasses
import functools
import inspect
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from . import _compat
from ._compat import instance_dict
from ._keys import ByIdentity
from ._parts import mro_of


ARRAY_TYPES = (jax.Array, np.ndarray, np.generic)


def is_array(x: Any) -> bool:
    """Whether a leaf of a call is an array.

    A proxy (of `wrapt`, say) claims to be an instance of the class of what it stands
    for. JAX takes none, and proxies of arrays and of others are of one type.
    """
    return isinstance(x, ARRAY_TYPES) and x.__class__ is type(x)


def is_array_or_struct(x: Any) -> bool:
    """Whether a leaf is an array, or says what one would be like."""
    return type(x) is jax.ShapeDtypeStruct or is_array(x)


class NodeKind:
    """What a type is to a pytree. `_walk.h` has the same numbers."""

    STATIC = 0
    ARRAY = 1
    # An array that the user can write to, or a scalar of NumPy.
    NUMPY = 2
    NONE = 3
    TUPLE = 4
    LIST = 5
    DICT = 6
    NAMEDTUPLE = 7
    MODULE = 8
    CUSTOM = 9
    # An array if the call is abstract, else a static.
    STRUCT = 10
    # An array of keys, a NumPy scalar.
    OTHER_ARRAY = 11
    # What an array of NumPy may be inside of. Those of a `jax.Ref` are statics.
    TRACER = 12
    # Of `jax.tree_util.register_dataclass`, with its fields in its `__dict__`.
    DATACLASS = 13
    # Its keys are sorted, like those of a `dict`.
    DEFAULTDICT = 14
    ORDERED_DICT = 15
    # `eqx.nn.State`, with all that it has in a dictionary in one attribute.
    STATE = 16


class Node(NamedTuple):
    """What is known about a type."""

    kind: int
    # Of a Module or a dataclass: the names of its dynamic and of its static fields.
    # Of a `State`: the attribute with its dictionary.
    dynamic: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    # Of a node: gives its children and its static data.
    flatten: Callable[[Any], tuple[Any, Any]] | None = None
    # Read the dynamic and the static fields from a `__dict__`.
    get_dynamic: Callable[[Any], tuple[Any, ...]] = lambda values: ()
    get_static: Callable[[Any], tuple[Any, ...]] = lambda values: ()


def getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Reads the attributes of these names from a `__dict__`, or raises `KeyError`."""
    if len(names) > 1:
        return operator.itemgetter(*names)
    return lambda values: tuple([values[name] for name in names])


def _with_fields(
    kind: int, dynamic: tuple[str, ...], static: tuple[str, ...], flatten: Any
) -> Node:
    return Node(kind, dynamic, static, flatten, getter(dynamic), getter(static))


_BUILTIN_NODES = {
    type(None): Node(NodeKind.NONE),
    tuple: Node(NodeKind.TUPLE),
    list: Node(NodeKind.LIST),
    dict: Node(NodeKind.DICT),
}
# Types that no program registers as nodes, because JAX itself would break.
_NEVER_NODES = frozenset({int, bool, float, complex, str, bytes, type(lambda: None)})


def is_module_class(cls: type) -> bool:
    """Whether a class is a subclass of `equinox.Module`."""
    return eqx.Module in mro_of(cls)


def is_node(x: Any) -> bool:
    """Whether JAX flattens a value, according to JAX itself."""
    treedef = jtu.tree_structure(x, is_leaf=lambda y: y is not x)
    # (`treedef_is_leaf` takes a node without children for a leaf.)
    return treedef.node_data() is not None


def _has_keys(x: jax.Array) -> bool:
    dtype = getattr(x, "dtype", None)  # of what only says that it is an array
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.extended)


def _may_be_node(x: Any) -> bool:
    cls = type(x)
    never = type(cls) is type and cls in _NEVER_NODES
    return not never and is_node(x)


def _dataclass_fields(x: Any) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The dynamic and the static fields of a registered dataclass.

    `None` if reading them from its `__dict__` would not be what JAX does.
    """
    cls = type(x)
    paths, treedef = jtu.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)
    dynamic = [str(getattr(path[0], "name", "")) for path, _ in paths]
    data = treedef.node_data()
    if not dataclasses.is_dataclass(cls) or data is None or "" in dynamic:
        return None
    names = [f.name for f in dataclasses.fields(cls) if f.init]
    static = [name for name in names if name not in dynamic]
    if len(static) != len(data[1]) or not reads_dict(cls, names):
        return None
    return tuple(dynamic), tuple(static)


def reads_dict(cls: type, names: Sequence[str]) -> bool:
    """Whether attributes of an instance are what its `__dict__` has."""
    return (
        cls.__dictoffset__ != 0
        and "__dict__" not in names
        and type(inspect.getattr_static(cls, "__dict__", None))
        is types.GetSetDescriptorType
        and cls.__getattribute__ is object.__getattribute__
        and all(
            not hasattr(type(value), "__set__")
            for name in names
            for base in mro_of(cls)
            if (value := vars(base).get(name)) is not None
        )
    )


def only_sets_fields(cls: type) -> bool:
    """Whether to call a class is to set each field of a dataclass, and nothing else.

    If its `__init__` is what `dataclasses` writes for such a class.
    """
    if type(cls) is not type or not dataclasses.is_dataclass(cls):
        return False
    fields = dataclasses.fields(cls)
    init = inspect.getattr_static(cls, "__init__")
    if (
        type(init) is not types.FunctionType
        or cls.__new__ is not object.__new__
        or not reads_dict(cls, [f.name for f in fields])
    ):
        return False
    like = tuple(
        (
            f.name,
            f.kw_only,
            f.default is not dataclasses.MISSING,
            f.default_factory is not dataclasses.MISSING,
        )
        for f in fields
    )
    # A frozen one uses `object.__setattr__`, whatever the class has.
    sets = cls.__setattr__ is object.__setattr__
    return any(
        _what_runs(init.__code__) == _init_of(like, frozen)
        for frozen in (False, True)
        if sets or frozen
    )


_what_runs = operator.attrgetter(
    "co_code", "co_flags", "co_consts", "co_names", "co_varnames", "co_freevars"
)


@functools.lru_cache(256)  # 0.3 ms, and a result may have many
def _init_of(fields: tuple[tuple[str, bool, bool, bool], ...], frozen: bool) -> Any:
    """What runs in the `__init__` of a dataclass of these fields.

    `None` if it has none. A class with an `__init__` of its own may have fields as no
    other could: such as one without a default after one that has a default.
    """
    made: list[tuple[str, Any, Any]] = []
    for name, kw_only, default, factory in fields:
        options: dict[str, Any] = {"kw_only": kw_only}
        if default:
            options["default"] = None
        if factory:
            options["default_factory"] = list
        made.append((name, Any, dataclasses.field(**options)))
    try:
        cls: Any = dataclasses.make_dataclass("_", made, frozen=frozen)
        return _what_runs(cls.__init__.__code__)
    except Exception:
        return None


def _dictionary_of_state() -> str | None:
    """The attribute with the dictionary that an `equinox.nn.State` flattens to.

    `None` if it is more than that.
    """
    cls, state = eqx.nn.State, eqx.nn.State(())
    values = vars(state)
    name = next(iter(values), "")
    if list(map(type, values.values())) != [dict] or not reads_dict(cls, [name]):
        return None
    values[name] = {"b": 1, "a": 2}
    children, treedef = jtu.tree_flatten(state)
    is_all = children == [1, 2] and treedef.node_data() == (cls, ("b", "a"))
    return name if is_all else None


# Earlier versions of JAX keep their order.
_SORTS_DEFAULTDICTS = jtu.tree_leaves(collections.defaultdict(None, b=1, a=2)) == [2, 1]


def classify(x: Any) -> Node:
    """What the type of a value is to a pytree."""
    cls = type(x)
    if type(cls) is type and (known := _BUILTIN_NODES.get(cls)) is not None:
        return known
    if _may_be_node(x):
        registry = _compat.node_registry()
        entry = None if registry is None else registry.get(cls)
        if entry is None:
            flatten = one_level
        elif _compat.is_dataclass_node(entry):
            flatten = jtu.default_registry.flatten_one_level
            if (fields := _dataclass_fields(x)) is not None:
                return _with_fields(NodeKind.DATACLASS, *fields, flatten)
        else:
            flatten = entry.to_iter
        if is_module_class(cls):
            dynamic, static = [], []
            for field in dataclasses.fields(cls):
                is_static = field.metadata.get("static", False)
                (static if is_static else dynamic).append(field.name)
            return _with_fields(NodeKind.MODULE, tuple(dynamic), tuple(static), flatten)
        if cls is collections.OrderedDict:
            return Node(NodeKind.ORDERED_DICT, flatten=flatten)
        if cls is collections.defaultdict and _SORTS_DEFAULTDICTS:
            return Node(NodeKind.DEFAULTDICT, flatten=flatten)
        if registry is not None and entry is None and issubclass(cls, tuple):
            return Node(NodeKind.NAMEDTUPLE)
        if cls is eqx.nn.State and (name := _dictionary_of_state()) is not None:
            return Node(NodeKind.STATE, (name,), flatten=flatten)
        return Node(NodeKind.CUSTOM, flatten=flatten)
    if issubclass(cls, Tracer):
        return Node(NodeKind.TRACER)
    if is_array(x):
        if isinstance(x, np.ndarray):
            return Node(NodeKind.NUMPY)
        # Nobody can write to a scalar of NumPy. The native walk takes the first type
        # that is an `ARRAY` for jaxlib's own.
        other = isinstance(x, np.generic) or _has_keys(x)
        return Node(NodeKind.OTHER_ARRAY if other else NodeKind.ARRAY)
    if cls is jax.ShapeDtypeStruct:
        return Node(NodeKind.STRUCT)
    return Node(NodeKind.STATIC)


# What is known of types, which it does not keep alive; dropped when JAX's registry has
# grown, since a type may be registered as a node after it was seen as a static.
known_nodes = ByIdentity()
_registered = 0


def node_of(x: Any) -> Node:
    """The kind of a value's type. JAX is asked once for each type."""
    drop_nodes_if_grown()
    cls = type(x)
    node = known_nodes.get(cls)
    if node is None or (
        node.kind == NodeKind.STATIC
        and _compat.node_registry() is None
        and _may_be_node(x)
    ):
        node = known_nodes.set(cls, classify(x))
    return node


def drop_nodes_if_grown() -> None:
    """Classify all types again if one has been registered as a node."""
    global _registered
    registry = _compat.node_registry()
    if registry is not None and len(registry) != _registered:
        known_nodes.clear()
        _registered = len(registry)


def one_level(x: Any) -> tuple[list[Any], Any]:
    """The children and the static data of a registered node, from JAX's registry."""
    children, treedef = jtu.tree_flatten(x, is_leaf=lambda y: y is not x)
    data = treedef.node_data()
    return children, None if data is None else data[1]


ARRAY_KINDS = (
    NodeKind.ARRAY,
    NodeKind.NUMPY,
    NodeKind.OTHER_ARRAY,
    NodeKind.TRACER,
)


class _Flattened:
    """On a trail: the static data is not the values of static fields, one by one."""


class _Wrapper:
    """On a trail: after the static fields come the attributes of a wrapper."""


# What wrapping gives a Module, to Equinox static data (`eqx.module_update_wrapper`).
WRAPPER_NAMES = (
    "__module__",
    "__name__",
    "__qualname__",
    "__doc__",
    "__annotations__",
)

# What Equinox has in place of those that a Module does not have. It gives this to any
# Module that it builds and that lacks fields; one without it is the same to Equinox.
_lacking = jtu.tree_map(lambda x: x, object.__new__(eqx.nn.Lambda))
MISSING = instance_dict(_lacking).get("__doc__", _Wrapper)


def _has_more(values: dict[str, Any]) -> bool:
    """Whether Equinox reads a Module with other attributes as one of a wrapper.

    With any, unless it is a version that has nothing to put in place of a wrapper's.
    """
    return MISSING is not _Wrapper or not values.keys().isdisjoint(WRAPPER_NAMES)


def parts_of(x: Any, node: Node) -> tuple[Sequence[Any], Sequence[Any]]:
    """The static data of a node, and its children."""
    kind = node.kind
    as_flattened = ()
    if kind == NodeKind.LIST or kind == NodeKind.TUPLE:
        return (), x
    if kind == NodeKind.DICT:
        keys = sort_keys(x)
        return keys, list(map(x.__getitem__, keys))
    if kind == NodeKind.MODULE or kind == NodeKind.DATACLASS:
        is_module = kind == NodeKind.MODULE
        values = instance_dict(x) if is_module else x.__dict__
        n_fields = len(node.dynamic) + len(node.static)
        if type(values) is dict:
            try:
                static, dynamic = node.get_static(values), node.get_dynamic(values)
            except KeyError:
                pass  # a field is missing: as below
            else:
                if is_module and len(values) > n_fields and _has_more(values):
                    others = [values.get(name, MISSING) for name in WRAPPER_NAMES]
                    static = (_Wrapper, *static, *others)
                return static, dynamic
        as_flattened = (_Flattened,)
    elif kind == NodeKind.NAMEDTUPLE:
        return (), tuple.__getitem__(x, slice(None))
    assert node.flatten is not None
    children, aux = node.flatten(x)
    return (*as_flattened, aux), list(children)


def parts_in_static(x: Any, node: Node) -> tuple[Sequence[Any], Sequence[Any]]:
    """The same of a node below a static.

    Dictionaries as they come: unlike one that is traced, which JAX sorts, the function
    sees this one itself.
    """
    if node.kind == NodeKind.DICT:
        return list(x), list(x.values())
    if node.kind == NodeKind.DEFAULTDICT:
        return [*x, x.default_factory], list(x.values())
    return parts_of(x, node)


def sort_keys(x: dict[Any, Any]) -> list[Any]:
    """The keys of a dictionary, in JAX's order."""
    try:
        return sorted(x)
    except TypeError:
        # JAX says what is wrong with them.
        jtu.tree_structure(x, is_leaf=lambda y: y is not x)
        raise
