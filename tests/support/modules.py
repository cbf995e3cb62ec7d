"""Modules and nodes that many tests use."""

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
    """A registered node with children and aux data, and no flatten of ours."""

    def __init__(self, children, aux=None):
        self.children = children
        self.aux = aux


jtu.register_pytree_node(
    Node, lambda n: (n.children, n.aux), lambda aux, xs: Node(xs, aux)
)
