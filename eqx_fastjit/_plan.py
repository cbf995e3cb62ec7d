"""Combine, in Python: how to build the result of a trace, which is the reference for
the native engine.
"""

import collections
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.tree_util as jtu

from . import _compat
from ._compat import hide_from_tracebacks, INSTANCE_DICT, instance_dict
from ._nodes import is_module_class, MISSING, only_sets_fields, WRAPPER_NAMES
from ._partition import DYNAMIC, Structure
from ._static_keys import append_static, static_key


hide_from_tracebacks(__file__)


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
    # `data`: the class, a dictionary to copy, the names of the topmost `n`, what sets a
    # `__dict__`, and what to call instead once the class has been changed, or `None`
    MODULE = 5
    CALL = 6  # `data`: called with a tuple of the topmost `n`
    NAMEDTUPLE = 7  # `data`: the class, called with the topmost `n`
    PLAIN_NAMEDTUPLE = 8  # `data`: the class, which does nothing when it is called


class Plan:
    """How to build the result of one trace."""

    # What was traced may refer to these very objects, which can be changed in place:
    # statics of the call that was traced, and `others` of `Call`.
    mutable: tuple[Any, ...] = ()
    others: Mapping[int, tuple[Callable[[Any], bool], Any]] = types.MappingProxyType({})

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
    """A result that `build` flattens again, to get copies of its static data.

    `None` if no node needs them.
    """
    try:
        if all(_copied_from(node) is None for node in _nodes(structure.treedef)):
            return None
        known = static_key(structure.treedef)
        template = jtu.tree_unflatten(structure.treedef, structure.leaves)
        data, again = (jtu.tree_structure(template) for _ in range(2))
        same = data.num_leaves == len(structure.leaves)
        same = same and not _depends_on_children(data, again, structure.treedef, known)
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
        tells = _depends_on_children(data, again, aux, known)
    except Exception:
        return None  # a class that takes nothing but arrays
    return None if tells or _are_shared(data, again) else node


def _static_data(node: Any) -> Any:
    return jtu.tree_structure(node, is_leaf=lambda x: x is not node).node_data()[1]


def _depends_on_children(data: Any, again: Any, aux: Any, known: Any) -> bool:
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
            cls, values, names, *_ = data
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
    elif entry is not None and _compat.is_dataclass_node(entry):
        _dataclass_step(steps, treedef, n)
    elif entry is not None:
        steps.append((Op.CALL, n, _unflatten(treedef, entry)))
    elif registry is not None and issubclass(cls, tuple):
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
    # Not `dict(...)`, which would not share its keys with all other instances: building
    # a Module took 1.1 (warm) to 1.2 times as long, and dropping it 1.1 times.
    values = instance_dict(sample).copy()
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
    data = cls, values, tuple(names), INSTANCE_DICT, None
    steps.append((Op.MODULE, len(names), data))


def _dataclass_step(steps: list[tuple[int, int, Any]], treedef: Any, n: int) -> None:
    """Create a registered dataclass by copying a dictionary, as a Module.

    JAX calls its class with keyword arguments: 1.7 us, which is as much as a small
    program takes.
    """
    unflatten = _one_level_treedef(treedef).unflatten
    cls, aux = treedef.node_data()
    step = Op.CALL, n, unflatten
    if only_sets_fields(cls):
        placeholders = [object() for _ in range(n)]
        values = vars(unflatten(placeholders)).copy()
        where = {id(x): name for name, x in values.items()}
        if len(values) == n + len(aux):
            names = tuple(where[id(x)] for x in placeholders)
            values.update(dict.fromkeys(names))
            descriptor = inspect.getattr_static(cls, "__dict__")
            step = Op.MODULE, n, (cls, values, names, descriptor, unflatten)
    steps.append(step)


def _is_missing(treedef: Any) -> bool:
    data = treedef.node_data()
    return data is not None and data[0] is type(MISSING)
