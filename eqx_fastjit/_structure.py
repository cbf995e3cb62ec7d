"""Taking calls and results apart with JAX's public API alone.

This is the reference for what a call *is*: its arrays, in JAX's order, and a key made
of everything else. The portable route does this on every call; the C++ route only when
the dispatcher meets a call for the first time, and there it must agree with this file
leaf by leaf.
"""

import collections
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np

from ._statics import is_stable, leaf_token, Token, token, UnhashableStatic


ARRAY_TYPES = (jax.Array, np.ndarray, np.generic)


class _Dynamic:
    """Stands in a key, and among the leaves of a `Structure`, for an array."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<array>"


DYNAMIC = _Dynamic()


class Structure(NamedTuple):
    """A pytree less its arrays."""

    treedef: Any
    # One per leaf: the static value, or `DYNAMIC`.
    leaves: tuple[Any, ...]

    def rebuild(self, arrays: Sequence[Any]) -> Any:
        """The pytree again, with these arrays in it."""
        it = iter(arrays)
        return jtu.tree_unflatten(
            self.treedef, [next(it) if x is DYNAMIC else x for x in self.leaves]
        )


class StaticLeafError(TypeError):
    """A static leaf cannot be hashed. Knows at which leaf, by number."""

    def __init__(self, index: int, value: Any, reason: str):
        super().__init__(reason)
        self.index = index
        self.value = value


def take_apart(
    tree: Any, *, abstract: bool = False
) -> tuple[list[Any], Structure, tuple[Token, ...]]:
    """Split a pytree into its arrays and the rest.

    **Arguments:**

    - `tree`: any pytree.
    - `abstract`: whether a `jax.ShapeDtypeStruct` counts as an array.

    **Returns:**

    The arrays in JAX's order; the `Structure` that puts them together again; and the
    tokens of the leaves, `DYNAMIC` for an array. Raises `StaticLeafError`.
    """
    dynamic_types = ARRAY_TYPES + ((jax.ShapeDtypeStruct,) if abstract else ())
    leaves, treedef = jtu.tree_flatten(tree)
    arrays = []
    kept = list(leaves)
    tokens = list(leaves)
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, dynamic_types):
            arrays.append(leaf)
            kept[i] = tokens[i] = DYNAMIC
        else:
            try:
                tokens[i] = leaf_token(leaf)
            except UnhashableStatic as e:
                raise StaticLeafError(i, leaf, str(e)) from e
    return arrays, Structure(treedef, tuple(kept)), tuple(tokens)


def walk(treedef: Any) -> Iterator[tuple[tuple[type, Any] | None, int]]:
    """Each node of a tree: its type and static data (`None` for a leaf), its arity."""
    pending = [treedef]  # an explicit stack: trees may be deeper than Python's limit
    while pending:
        node = pending.pop()
        children = node.children()
        yield node.node_data(), len(children)
        pending.extend(children)


def treedef_token(treedef: Any) -> Token:
    """A token for the nodes of a tree: their types and whatever static data they hold.

    `treedef == treedef` would compare that data by `==` alone (see `_statics.py`).
    """
    # The hash tells nodes apart that have one type, such as a namedtuple before and
    # after it was registered as a node of another kind. It leaves static data out.
    out: list[Any] = [hash(treedef)]
    for data, arity in walk(treedef):
        if data is None:
            out.append(DYNAMIC)
        else:
            cls, aux = data
            out.append((cls, arity, None if aux is None else token(aux)))
    return tuple(out)


def has_odd_dict_keys(treedef: Any) -> bool:
    """Whether a dictionary in the tree has a key that is not exactly a `str`.

    jaxlib's dispatcher compares the keys of dictionaries with `==`, to which `1`, `1.0`
    and `True` are one key, so calls with such keys must not be left to it.
    """
    return any(
        data is not None
        and data[0] is dict
        and any(type(key) is not str for key in data[1])
        for data, _ in walk(treedef)
    )


class ResultInfo:
    """What one trace returned, less the arrays.

    Compares by identity, so JAX can carry it in the structure of the traced output.
    """

    __slots__ = ("calls_back", "cpp_treedefs", "structure", "template")

    def __init__(self, structure: Structure):
        self.structure = structure
        self.template = _template(structure)
        # Whether a host callback may raise after the call was dispatched; not known
        # until the trace is complete.
        self.calls_back: bool | None = None
        # The structures for jaxlib's dispatcher, made by `_nodes.py` when first needed:
        # for calls that wait, and that do not.
        self.cpp_treedefs: dict[bool, Any] = {}

    def rebuild(self, arrays: Sequence[Any]) -> Any:
        """The result again, with these arrays in it."""
        structure = self.structure
        if self.template is not None:
            treedef = jtu.tree_structure(self.template)
            structure = Structure(treedef, structure.leaves)
        return structure.rebuild(arrays)


def _template(structure: Structure) -> Any:
    """A result to take apart anew for each that is made like it; `None` if needless.

    A class may give a node static data that can be written to, copied from an instance.
    Each result then must have a copy of its own, or what the user does to one result
    would show in all.
    """
    if not any(
        data is not None
        and data[0] not in _KEYED
        and not issubclass(data[0], eqx.Module)  # the very objects in its fields
        and not is_stable(data[1])
        for data, _ in walk(structure.treedef)
    ):
        return None
    try:
        template = jtu.tree_unflatten(structure.treedef, structure.leaves)
        same = len(jtu.tree_leaves(template)) == len(structure.leaves)
    except Exception:
        return None  # a class that takes nothing but arrays
    return template if same else None


# Their static data are keys.
_KEYED = (dict, collections.OrderedDict, collections.defaultdict)


class ResultNode:
    """A pytree without leaves that carries a `ResultInfo` out of a trace."""

    __slots__ = ("info",)

    def __init__(self, info: ResultInfo):
        self.info = info


jtu.register_pytree_node(
    ResultNode, lambda node: ((), node.info), lambda info, _: ResultNode(info)
)
