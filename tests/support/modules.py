"""Modules, nodes and statics that many tests use."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.tree_util as jtu


class Holder(eqx.Module):
    """Holds an array and something static, which need not be hashable."""

    x: jax.Array
    static: object = eqx.field(static=True)


class Inner(eqx.Module):
    """Holds anything, as a pytree."""

    value: object


class Node:
    """A registered node with children and aux data, and no special reader."""

    def __init__(self, children, aux=None):
        self.children = children
        self.aux = aux


jtu.register_pytree_node(
    Node, lambda n: (n.children, n.aux), lambda aux, xs: Node(xs, aux)
)


class Pair(NamedTuple):
    a: object
    b: object


@dataclasses.dataclass(frozen=True)
class Frozen:
    """Has a hash, if what it holds has one."""

    value: object


class Unhashed:
    """Has an `__eq__` and no hash, and so is compared by its state."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(other) is type(self) and self.value == other.value

    def __repr__(self):
        return f"{type(self).__name__}({self.value!r})"


class Hashed(Unhashed):
    """Has a hash as well, which Python takes for immutable."""

    __eq__ = Unhashed.__eq__

    def __hash__(self):
        return hash(self.value)
