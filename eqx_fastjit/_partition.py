"""Partition and combine, in Python: the reference for the native engine.

A call is its arrays, in JAX's order, and a *signature* of everything else: the types,
arities, keys and statics on the way, written on a trail. `_native.c` does the same
without Python, and must agree with this file; where it cannot be had, this is used.
"""

import collections
import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.tree_util as jtu
import numpy as np

from . import _compat
from ._compat import hide_from_tracebacks, instance_dict
from ._nodes import (
    ARRAY_KINDS,
    drop_nodes_if_grown,
    is_array,
    is_array_or_struct,
    is_module_class,
    known_nodes,
    MISSING,
    Node,
    node_of,
    NodeKind,
    parts_of,
    WRAPPER_NAMES,
)
from ._parts import type_key
from ._static_keys import (
    append_atoms,
    append_static,
    ATOMS,
    LONG_TRAIL,
    static_key,
    UnhashableStatic,
)


hide_from_tracebacks(__file__)

# A placeholder for any array.
ANY_ARRAY = np.float32(0)


class _Dynamic:
    """The placeholder for an array on a trail, and in the leaves of a `Structure`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<array>"


DYNAMIC = _Dynamic()


class Omitted:
    """Stands for a parameter that was not passed and whose default stays unseen.

    Compares by identity: there is one for each default (`omitted`), so a function that
    is given another default has another one.
    """

    __slots__ = ("__weakref__", "default")

    def __init__(self, default: Any):
        self.default = default

    def __repr__(self) -> str:
        return "<omitted>"


# By the id of the default, which the value keeps alive.
_omitted: weakref.WeakValueDictionary[int, Omitted] = weakref.WeakValueDictionary()


def omitted(default: Any) -> Omitted:
    """The placeholder for a default that was not passed."""
    return _omitted.setdefault(id(default), Omitted(default))


class Structure(NamedTuple):
    """A pytree without its arrays."""

    treedef: Any
    # One per leaf: the static value, or `DYNAMIC`.
    leaves: tuple[Any, ...]

    def rebuild(self, arrays: Sequence[Any]) -> Any:
        """The pytree again, with these arrays in it."""
        it = iter(arrays)
        return jtu.tree_unflatten(
            self.treedef, [next(it) if x is DYNAMIC else x for x in self.leaves]
        )


def partition(tree: Any, *, abstract: bool = False) -> tuple[list[Any], Structure]:
    """The arrays of a pytree in JAX's order, and the rest, by `jax.tree_util`.

    If it is `abstract`, a `jax.ShapeDtypeStruct` counts as an array.
    """
    leaves, treedef = jtu.tree_flatten(tree)
    are_dynamic = list(map(is_array_or_struct if abstract else is_array, leaves))
    arrays = list(itertools.compress(leaves, are_dynamic))
    pairs = zip(leaves, are_dynamic, strict=True)
    kept = [DYNAMIC if dynamic else x for x, dynamic in pairs]
    return arrays, Structure(treedef, tuple(kept))


# --- the walk ------------------------------------------------------------------------


class Walk(NamedTuple):
    """The result of a walk over a call."""

    arrays: list[Any]
    # Hashable, and equal for calls that share their traces.
    trail: list[Any]
    # Static values that can be changed in place: where they begin and end on the trail.
    mutable: list[tuple[Any, int, int]]


class StaticLeafError(TypeError):
    """A static leaf cannot be hashed."""

    def __init__(self, value: Any, reason: str):
        super().__init__(reason)
        self.value = value


def walk(tree: Any, *, abstract: bool = False) -> Walk:
    """Walk over a pytree in JAX's order.

    If it is `abstract`, a `jax.ShapeDtypeStruct` counts as an array. Raises
    `StaticLeafError` for a static leaf without a hash, and whatever the flatten
    functions of the user's classes raise.
    """
    drop_nodes_if_grown()
    found = Walk([], [], [])
    arrays, trail, _ = found
    limit = LONG_TRAIL
    pending = [tree]  # an explicit stack: trees may be deeper than Python's limit
    nodes = known_nodes.entries  # as `ByIdentity.get`
    # If the registry is not available, a type may have become a node unnoticed.
    unknown = NodeKind.STATIC if _compat.node_registry() is None else None
    while pending:
        x = pending.pop()
        cls = type(x)
        if id(cls) in ATOMS:
            trail += (cls, x)
            continue
        entry = nodes.get(id(cls))
        if entry is not None and entry[0]() is cls and entry[1].kind != unknown:
            node = entry[1]
        else:
            node = node_of(x)
        kind = node.kind
        if kind == NodeKind.TRACER and not is_array(x):
            kind = NodeKind.STATIC
        if kind in ARRAY_KINDS or (kind == NodeKind.STRUCT and abstract):
            arrays.append(x)
            trail.append(DYNAMIC)
        elif kind == NodeKind.STATIC or kind == NodeKind.STRUCT:
            _static(found, x, leaf=True)
        else:
            trail.append(type_key(cls))
            children = _children(found, x, node)
            # Unlike that of a static: a class may become a node.
            trail.append(~len(children))
            pending += reversed(children)
            if len(trail) > limit:
                # Raises if it contains itself. Of what is left, since the user's code
                # may have taken that out of the whole; and later again.
                jtu.tree_structure(pending)
                limit = 2 * len(trail)
    return found


def _static(found: Walk, x: Any, *, leaf: bool) -> None:
    start = len(found.trail)
    try:
        mutable = append_static(found.trail, x, leaf=leaf)
    except UnhashableStatic as e:
        raise StaticLeafError(x, str(e)) from e
    if mutable:
        found.mutable.append((x, start, len(found.trail)))


def _children(found: Walk, x: Any, node: Node) -> Sequence[Any]:
    """What is below a node; its static data goes on the trail."""
    if node.kind == NodeKind.LIST or node.kind == NodeKind.TUPLE:
        return x
    static, children = parts_of(x, node)
    if not append_atoms(found.trail, static):
        for value in static:
            _static(found, value, leaf=False)
    return children


def same_trail(static: Any, trail: Sequence[Any]) -> bool:
    """Whether a static value still has the trail that it had."""
    try:
        now = static_key(static)
    except Exception:
        return False
    return now == tuple(trail)


# --- results -------------------------------------------------------------------------


class ResultHandle:
    """A pytree without leaves, which carries the structure of a result out of a trace.

    JAX keeps it in caches of its own, so it holds nothing of the user's. It is its own
    static data, and unflattening gives it back: of another object JAX would not repeat
    the call by itself, which costs 0.1 ms a call.
    """

    __slots__ = ("__weakref__",)

    def __repr__(self) -> str:
        return "<result>"  # without an address: it may be in the text of a program


jtu.register_pytree_node(ResultHandle, lambda x: ((), x), lambda x, _: x)


class Op:
    """Steps that build a result on a stack. `_native.c` has the same numbers."""

    ARRAY = 0  # push the next array
    CONSTANT = 1  # push `data`
    TUPLE = 2  # of the topmost `n`
    LIST = 3
    DICT = 4  # `data`: the keys
    MODULE = 5  # `data`: the class, a dictionary to copy, the names of the topmost `n`
    CALL = 6  # `data`: called with a tuple of the topmost `n`
    NAMEDTUPLE = 7  # `data`: the class, called with the topmost `n`
    PLAIN_NAMEDTUPLE = 8  # `data`: the class, which does nothing when it is called


class Plan:
    """How to build the result of one trace."""

    def __init__(self, structure: Structure):
        self.structure = structure
        # The native engine's form of it.
        self.native: Any = None
        # Whether a host callback may raise after the call was dispatched; not known
        # until the trace is complete.
        self.blocks: bool | None = None
        self.steps = _steps(structure)  # of the native engine
        self.template = _template(structure)

    def build(self, arrays: Sequence[Any]) -> Any:
        """The result again, with these arrays in it."""
        structure = self.structure
        if self.template is not None:
            treedef = jtu.tree_structure(self.template)
            structure = Structure(treedef, structure.leaves)
        return structure.rebuild(arrays)


def _template(structure: Structure) -> Any:
    """A result to flatten again for each that is built like it; `None` if needless."""
    try:
        if all(_copied_from(node) is None for node in _nodes(structure.treedef)):
            return None
        known = static_key(structure.treedef)
        template = jtu.tree_unflatten(structure.treedef, structure.leaves)
        data, again = (jtu.tree_structure(template) for _ in range(2))
        same = data.num_leaves == len(structure.leaves)
        same = same and not _tells_of_children(data, again, structure.treedef, known)
    except Exception:
        return None  # a class that takes nothing but arrays
    return template if same else None


def _copied_from(treedef: Any) -> Any:
    """A node whose static data is a copy each time; `None` if it need not be one.

    Its class may copy what can be written to, such as the dictionary of an instance,
    and not copy it again for a result. Each result then must have a copy of its own, or
    what the user does to one would show in all.
    """
    cls, aux = treedef.node_data()
    if cls in _KEYED or _holds_its_data(cls) or not append_static([], aux, leaf=False):
        return None
    try:
        known = static_key(aux)
        children = [object() for _ in treedef.children()]
        node = _one_level_treedef(treedef).unflatten(children)
        data, again = (_static_data(node) for _ in range(2))
        tells = _tells_of_children(data, again, aux, known)
    except Exception:
        return None  # a class that takes nothing but arrays
    return None if tells or _are_shared(data, again) else node


def _static_data(node: Any) -> Any:
    return jtu.tree_structure(node, is_leaf=lambda x: x is not node).node_data()[1]


def _tells_of_children(data: Any, again: Any, aux: Any, known: Any) -> bool:
    """Whether static data is other than `aux` if the children are no arrays.

    It may have their shapes. (What is never the same is compared by identity.) Not if
    the class writes to what it is given, and its key is no longer `known`.
    """
    key = static_key(data)
    return key == static_key(again) and key != known == static_key(aux)


def _are_shared(x: Any, y: Any) -> bool:
    """Whether what can be written to in static data is the same object in both."""
    if type(x) is tuple and type(y) is tuple and len(x) == len(y):
        return all(map(_are_shared, x, y))
    return x is y or not append_static([], x, leaf=False)


def _holds_its_data(cls: type) -> bool:
    """Whether the static data of a node are the very objects in its fields."""
    entry = (_compat.node_registry() or {}).get(cls)
    registered = entry is not None and _compat.is_dataclass_node(entry)
    return registered or is_module_class(cls)


# Their static data are keys.
_KEYED = (dict, collections.OrderedDict, collections.defaultdict)


def _nodes(treedef: Any) -> Iterator[Any]:
    """Each node of a tree."""
    pending = [treedef]
    while pending:
        node = pending.pop()
        if node.node_data() is not None:
            yield node
        pending.extend(node.children())


def _steps(structure: Structure) -> tuple[tuple[int, int, Any], ...]:
    """The steps that build a result. Each node comes after its children."""
    leaves = iter(structure.leaves)
    steps: list[tuple[int, int, Any]] = []
    # Where the steps begin that make each of the values on the stack.
    begins: list[int] = []
    # A node, and whether its children are done.
    pending = [(structure.treedef, False)]
    while pending:
        treedef, done = pending.pop()
        data = treedef.node_data()
        if done:
            n = len(treedef.children())
            base = len(begins) - n
            first = begins[base] if n else len(steps)
            _node_steps(steps, begins, treedef, n)
            begins[base:] = [first]
        elif data is not None and data[0] is not type(None):
            pending.append((treedef, True))
            pending.extend((child, False) for child in reversed(treedef.children()))
        else:
            begins.append(len(steps))
            leaf = None if treedef.num_leaves == 0 else next(leaves)
            is_array = leaf is DYNAMIC
            steps.append((Op.ARRAY, 0, None) if is_array else (Op.CONSTANT, 0, leaf))
    return _sharing(steps)


def _sharing(steps: list[tuple[int, int, Any]]) -> tuple[tuple[int, int, Any], ...]:
    """The same steps; Modules whose constants are the same objects share a dictionary.

    An optimiser's state has several copies of a model, and each call reads all that it
    copies: an adamw step of a GPT of 12 blocks took 1.38 times as long as with a flat
    list of its arrays, and takes 1.30 times.
    """
    # By id, of what `shared` itself keeps alive.
    shared: dict[Any, Any] = {}
    out: list[tuple[int, int, Any]] = []
    for op, n, data in steps:
        if op == Op.MODULE:
            cls, values, names = data
            key = id(cls), names, tuple(values), tuple(map(id, values.values()))
            data = shared.setdefault(key, data)
        out.append((op, n, data))
    return tuple(out)


_CONTAINERS = {tuple: Op.TUPLE, list: Op.LIST}


def _node_steps(
    steps: list[tuple[int, int, Any]], begins: list[int], treedef: Any, n: int
) -> None:
    """Add the step that makes a node of its `n` children."""
    cls, aux = treedef.node_data()
    registry = _compat.node_registry()
    entry = None if registry is None else registry.get(cls)
    if cls in _CONTAINERS:
        steps.append((_CONTAINERS[cls], n, None))
    elif cls is dict:
        steps.append((Op.DICT, n, tuple(aux)))
    elif is_module_class(cls):
        _module_steps(steps, begins, treedef, n)
    elif entry is not None and not _compat.is_dataclass_node(entry):
        steps.append((Op.CALL, n, _unflatten(treedef, entry)))
    elif entry is None and registry is not None and issubclass(cls, tuple):
        op = Op.PLAIN_NAMEDTUPLE if _is_plain_namedtuple(cls) else Op.NAMEDTUPLE
        steps.append((op, n, cls))
    else:
        steps.append((Op.CALL, n, _one_level_treedef(treedef).unflatten))


def _unflatten(treedef: Any, entry: Any) -> Callable[[Any], Any]:
    """Makes a node of its children, by the registered unflatten function."""
    node = _copied_from(treedef)
    if node is None:
        return functools.partial(entry.from_iter, treedef.node_data()[1])
    return lambda children: entry.from_iter(entry.to_iter(node)[1], children)


def _is_plain_namedtuple(cls: type) -> bool:
    """Whether `cls(*children)` makes a tuple and nothing else.

    Its `__new__`, which is Python, takes five times as long as making the tuple, and an
    optimiser may have forty such states.
    """
    namespace = getattr(cls.__new__, "__globals__", {})
    return (
        type(cls) is type
        and cls.__init__ is object.__init__
        and namespace.get("_tuple_new") is tuple.__new__
        and str(namespace.get("__name__")).startswith("namedtuple_")
    )


_LEAF = jtu.tree_structure(0)


def _one_level_treedef(treedef: Any) -> Any:
    """The same node, over leaves."""
    make = getattr(jtu.PyTreeDef, "from_node_data_and_children", None)
    if make is not None:
        # Creates none: its class, or that of a part, may check what it is given.
        leaves = [_LEAF] * len(treedef.children())
        return make(jtu.default_registry, treedef.node_data(), leaves)
    sample = jtu.tree_unflatten(treedef, [object()] * treedef.num_leaves)
    return jtu.tree_structure(sample, is_leaf=lambda x: x is not sample)


def _module_steps(
    steps: list[tuple[int, int, Any]], begins: list[int], treedef: Any, n: int
) -> None:
    """Create a Module by copying a dictionary.

    Without those of its fields that it lacks, as Equinox does.
    """
    one_level = _one_level_treedef(treedef)
    lacking = [_is_missing(child) for child in treedef.children()]
    placeholders = [MISSING if lacks else object() for lacks in lacking]
    sample = one_level.unflatten(placeholders)
    cls = type(sample)
    values = dict(instance_dict(sample))
    where = {id(x): name for name, x in values.items() if x is not MISSING}
    known = {*(f.name for f in dataclasses.fields(cls)), *WRAPPER_NAMES}
    found = [id(x) in where or x is MISSING for x in placeholders]
    if not known.issuperset(values) or not all(found):
        steps.append((Op.CALL, n, one_level.unflatten))
        return
    names = [where.get(id(x), "") for x in placeholders]
    # Children that are constants (an activation function, `None`) go into the
    # dictionary, the last first: each is a single step, which is then left out.
    ends = [*begins[len(begins) - n + 1 :], len(steps)] if n else []
    for i in reversed(range(n)):
        begin, end = begins[len(begins) - n + i], ends[i]
        if lacking[i]:
            del steps[begin:end], names[i]
            continue
        values[names[i]] = None
        if end - begin == 1 and steps[begin][0] == Op.CONSTANT:
            values[names[i]] = steps.pop(begin)[2]
            del names[i]
    steps.append((Op.MODULE, len(names), (cls, values, tuple(names))))


def _is_missing(treedef: Any) -> bool:
    data = treedef.node_data()
    return data is not None and data[0] is type(MISSING)
