"""What stays of a pytree without its arrays, and how to build it again.

A specialization stores it of the arguments that it was made for, and the plan of a
trace of its result.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.tree_util as jtu
from jax.tree_util import tree_unflatten

from ._statics import is_array
from ._trails import static_key


DYNAMIC = object()  # stands for an array


class Structure(NamedTuple):
    """A pytree without its arrays."""

    treedef: Any
    # The static leaves, and `DYNAMIC` for each array.
    leaves: tuple[Any, ...]

    def rebuild(self, arrays: Sequence[Any]) -> Any:
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
        return self._key() == other._key()

    def _key(self) -> tuple[Any, ...]:
        def nodes(treedef: Any) -> tuple[Any, ...]:
            return treedef.node_data(), *map(nodes, treedef.children())

        return static_key((self.leaves, nodes(self.treedef)))


def partition(tree: Any, abstract: bool = True) -> tuple[list[Any], Structure]:
    """The arrays of a pytree, in JAX's order, and the rest."""
    leaves, treedef = jtu.tree_flatten(tree)
    rest = tuple([DYNAMIC if is_array(x, abstract) else x for x in leaves])
    arrays = [x for x, kept in zip(leaves, rest, strict=True) if kept is DYNAMIC]
    return arrays, Structure(treedef, rest)
