"""Trees that are too deep, too wide or endless: what each is to be, and what it was.

They might crash, and so have a process of their own. Each case has a thread of its own,
because each thread counts its own recursion, and jaxlib does not always restore that.
"""

import dataclasses
import sys
import threading
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

import eqx_fastjit
from tests.support.modules import Node


X = jnp.array(2.0)


class Box(eqx.Module):
    content: object
    static: object = eqx.field(static=True, default=None)


def nested(depth, wrap, inside):
    for _ in range(depth):
        inside = wrap(inside)
    return inside


def in_list(x):
    return [x]


def in_tuple(x):
    return (x,)


def in_box(x, static=None):
    """Like `Box(x, static)`, but without Equinox's checks, which walk all of `x`."""
    box = object.__new__(Box)
    object.__setattr__(box, "content", x)
    object.__setattr__(box, "static", static)
    return box


def cyclic_list():
    x = []
    x.append(x)
    return x


def cyclic_dict():
    x = {}
    x["x"] = x
    return x


def cyclic_module():
    box = Box([X])
    box.content.append(box)
    return box


def module_inside_itself():
    box = Box(X)
    object.__setattr__(box, "content", box)
    return box


@dataclasses.dataclass(slots=True)
class Slots:
    next: Any = None


def cyclic_slots():
    x = Slots()
    x.next = x
    return in_box(X, x)


def cyclic_node():
    x = Node([])
    x.children.append(x)
    return x


class Itself:
    def __init__(self):
        self.itself = self


class Endless:
    """Has another of its kind for a child, each time that it is flattened."""


jtu.register_pytree_node(
    Endless, lambda _: ((Endless(),), None), lambda _, xs: Endless()
)


FINE = {
    "cyclic_static_list": lambda: in_box(X, cyclic_list()),
    "cyclic_static_module": lambda: in_box(X, module_inside_itself()),
    "cyclic_slots": cyclic_slots,
    # What has an identity only may contain itself.
    "identities": lambda: [X, sys, Itself()],
    "modules_200": lambda: nested(200, in_box, X),
    "statics_100": lambda: in_box(X, nested(100, in_tuple, 1)),
    "wide": lambda: {f"k{i}": X for i in range(3000)},
    "long_static": lambda: Box(X, "a" * 10**7),
    "many_statics": lambda: Box(X, tuple(range(10**5))),
    "huge_integer": lambda: [X, 10**50_000],
}
TOO_DEEP = {
    "cyclic_list": cyclic_list,
    "cyclic_dict": cyclic_dict,
    "cyclic_module": cyclic_module,
    "module_inside_itself": module_inside_itself,
    "cyclic_node": cyclic_node,
    "endless_flatten": Endless,
    "lists_100000": lambda: nested(100_000, in_list, X),
    "tuples_100000": lambda: nested(100_000, in_tuple, X),
    "modules_100000": lambda: nested(100_000, in_box, X),
    "statics_1000000": lambda: in_box(X, nested(1_000_000, in_tuple, 1)),
    "static_lists_1000000": lambda: in_box(X, nested(1_000_000, in_list, 1)),
    "deep_result": lambda: X,
}


def main():
    first = eqx_fastjit.filter_jit(lambda tree: jtu.tree_leaves(tree)[0])
    f = eqx_fastjit.filter_jit(lambda tree: X)
    returns_deep = eqx_fastjit.filter_jit(lambda _: nested(100_000, in_list, X))
    # Of others, the first leaf is returned.
    calls = {"endless_flatten": f, "deep_result": returns_deep}

    def run(name, tree, expected):
        for _ in range(2):
            try:
                out = calls.get(name, first)(tree)
                assert out == 2, out
                found = "fine"
            except Exception as e:
                found = f"{type(e).__name__} {' '.join(str(e).split())[:120]}"
            print(name, expected, found, flush=True)

    usable = {"usable_afterwards": lambda: Box([X])}
    for cases in (FINE, TOO_DEEP, usable):
        expected = "RecursionError" if cases is TOO_DEEP else "fine"
        for name, make in cases.items():
            thread = threading.Thread(target=run, args=(name, make(), expected))
            thread.start()
            thread.join()


if __name__ == "__main__":
    main()
