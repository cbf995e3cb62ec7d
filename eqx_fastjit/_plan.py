"""What stays of a pytree without its arrays, and how to build it again.

A `Structure` is what a specialization stores of the arguments it was made for, and what
the plan of a trace stores of its result. A plan's `Step`s are what `csrc/plan.c` and
`_reference.py` build a result by; both have them by these names.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.tree_util as jtu

from ._private import INSTANCE_DICT, instance_dict
from ._statics import is_array_or_struct


class _Dynamic:
    """Stands for an array."""

    def __repr__(self) -> str:
        return "*"


DYNAMIC = _Dynamic()


class Structure(NamedTuple):
    """A pytree without its arrays."""

    treedef: Any
    # The static leaves, and `DYNAMIC` for each array.
    leaves: tuple[Any, ...]

    def rebuild(self, arrays: Sequence[Any]) -> Any:
        """The pytree again, with these arrays in it."""
        left = iter(arrays)
        leaves = [next(left) if x is DYNAMIC else x for x in self.leaves]
        return jtu.tree_unflatten(self.treedef, leaves)


def partition(
    tree: Any, is_dynamic: Callable[[Any], bool] = is_array_or_struct
) -> tuple[list[Any], Structure]:
    """The arrays of a pytree, in JAX's order, and the rest."""
    leaves, treedef = jtu.tree_flatten(tree)
    rest = tuple([DYNAMIC if is_dynamic(x) else x for x in leaves])
    arrays = [x for x, kept in zip(leaves, rest, strict=True) if kept is DYNAMIC]
    return arrays, Structure(treedef, rest)


class Handle:
    """Says which trace a compiled function came from, which returns it beside arrays.

    JAX keeps handles in caches of its own, so it refers to its plan weakly: the plan
    has the user's objects.
    """

    __slots__ = ("__weakref__", "plan")

    def __init__(self, plan: Any):
        self.plan = weakref.ref(plan)

    def __repr__(self) -> str:
        return "<result>"  # without an address: it may be in the text of a program


# A handle has no children, and is its own aux data: of another one, JAX would not
# repeat a call by itself.
jtu.register_pytree_node(Handle, lambda handle: ((), handle), lambda handle, _: handle)


class Step(NamedTuple):
    """How to build a part of a result, from its own parts."""

    name: str
    data: Any = None
    parts: "tuple[Step, ...]" = ()


def steps_of(structure: Structure) -> Step:
    """How to build a result."""
    return _step(structure.treedef, iter(structure.leaves))


def _step(treedef: Any, leaves: Iterator[Any]) -> Step:
    data = treedef.node_data()
    if data is None:
        leaf = next(leaves)
        return Step("array") if leaf is DYNAMIC else Step("constant", leaf)
    cls, aux = data
    parts = tuple([_step(child, leaves) for child in treedef.children()])
    if cls is type(None):
        return Step("constant", None)
    if cls is tuple or cls is list:
        return Step(cls.__name__, None, parts)
    if cls is dict:
        return Step("dict", tuple(aux), parts)
    if _is_plain_namedtuple(cls):
        return Step("named", cls, parts)
    return _module_step(treedef, parts) or Step(
        "call", _one_level(treedef).unflatten, parts
    )


_LEAF = jtu.tree_structure(0)


def _one_level(treedef: Any) -> Any:
    """The same node, over leaves."""
    make = getattr(jtu.PyTreeDef, "from_node_data_and_children", None)
    if make is not None:
        # Creates none: its class, or that of a part, may check what it is given.
        leaves = [_LEAF] * len(treedef.children())
        return make(jtu.default_registry, treedef.node_data(), leaves)
    # JAX 0.7
    sample = jtu.tree_unflatten(treedef, [object()] * treedef.num_leaves)
    return jtu.tree_structure(sample, is_leaf=lambda x: x is not sample)


def _is_plain_namedtuple(cls: type) -> bool:
    """Whether `cls(*parts)` makes a tuple and nothing else.

    Its `__new__`, which is Python, takes five times as long as making the tuple, and an
    optimiser may have forty such states.
    """
    made_by = getattr(cls.__new__, "__globals__", {}).get("_tuple_new")
    if not issubclass(cls, tuple) or made_by is not tuple.__new__:
        return False
    # Not one that is registered as another node.
    sample = tuple.__new__(cls, getattr(cls, "_fields", ()))
    is_plain = jtu.tree_structure(sample).node_data() == (cls, None)
    return is_plain and cls.__init__ is object.__init__ and type(cls) is type


def _module_step(treedef: Any, parts: tuple[Step, ...]) -> Step | None:
    """How to create a Module: by copying a dictionary. `None` if it is no Module."""
    cls = treedef.node_data()[0]
    if not issubclass(cls, eqx.Module):
        return None
    # In place of a field that is not set, Equinox has a node of its own, which it does
    # not set either: so leave that to it.
    if any(part.name == "call" and not part.parts for part in parts):
        return None
    placeholders = [object() for _ in parts]
    sample = _one_level(treedef).unflatten(placeholders)
    # A copy shares its keys with all other instances: smaller, and quicker to build.
    values = instance_dict(sample).copy()
    where = {id(x): name for name, x in values.items()}
    if type(sample) is not cls or not all(id(x) in where for x in placeholders):
        return None
    dynamic: list[tuple[str, Step]] = []
    for placeholder, part in zip(placeholders, parts, strict=True):
        name = where[id(placeholder)]
        if part.name == "constant":  # an activation function, `None`
            values[name] = part.data
        else:
            values[name] = None
            dynamic.append((name, part))
    data = cls, values, tuple([name for name, _ in dynamic]), INSTANCE_DICT
    return Step("module", data, tuple([part for _, part in dynamic]))
