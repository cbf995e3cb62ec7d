"""Partition, in Python: the reference for the native engine.

A call is its arrays, in JAX's order, and a *signature* of everything else: the types,
arities, keys and statics on the way, written on a trail. `_walk.h` does the same
without Python, and must agree with this file; where it cannot be had, this is used.
"""

import itertools
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.tree_util as jtu
import numpy as np

from . import _compat
from ._compat import hide_from_tracebacks
from ._nodes import (
    ARRAY_KINDS,
    drop_nodes_if_grown,
    is_array,
    is_array_or_struct,
    known_nodes,
    Node,
    node_of,
    NodeKind,
    parts_of,
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

    def witnesses(self) -> tuple[Any, ...]:
        """What a trace for this call may refer to later, and find changed."""
        return tuple([x for x, _, _ in self.mutable])


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
