"""How the result of a call is built from the arrays that a compiled function returned.

A trace returns arrays and a `Handle`, which says whose they are. `csrc/plan.c` builds
the result by `Step`s, which it has by these names; `_reference.py` by its `Structure`.
"""

import weakref
from typing import Any, NamedTuple

import jax.tree_util as jtu

from ._private import INSTANCE_DICT, instance_dict
from ._statics import is_array, reader_of


class Handle(weakref.ref[Any]):
    """Says which trace a compiled function came from, which returns it beside arrays.

    JAX keeps handles in caches of its own, so it refers to its plan weakly: the plan
    has the user's objects.
    """

    def __reduce__(self) -> Any:
        return Handle, (Handle,)  # of a program in a file, which has no plan

    def __repr__(self) -> str:
        return "<result>"  # without an address: it may be in the text of a program


def flat_output(returned: Any) -> list[Any]:
    """What a compiled function returned, as a list: its arrays, and a `Handle`."""
    if type(returned) is list:
        return returned
    tree, handle = returned  # with shardings of the user's for a tree
    return [*jtu.tree_leaves(tree), handle]


class Step(NamedTuple):
    """How to build a part of a result, from its own parts."""

    name: str
    data: Any = None
    parts: "tuple[Step, ...]" = ()


def steps_of(x: Any) -> Step:
    """How to build a result, or a part of it, like this one."""
    parts, node = jtu.tree_flatten(x, is_leaf=lambda y: y is not x)
    data = node.node_data()
    if data is None or x is None:
        return Step("array") if is_array(x) else Step("constant", x)

    cls, aux = data
    steps = tuple(map(steps_of, parts))
    if cls is tuple or cls is list:
        return Step(cls.__name__, None, steps)
    if cls is dict:
        return Step("dict", tuple(aux), steps)
    if _is_plain_namedtuple(x):
        return Step("named", cls, steps)

    reader = reader_of(x)
    if reader.name == "module":
        names = reader.names[: len(parts)]
        # As Equinox creates it: in this order, and the copy of such a dictionary shares
        # its keys with all other instances, so it is smaller, and quicker to build.
        fields = instance_dict(node.unflatten(parts)).copy()
        if fields.keys() >= set(names):
            return _step_of_module(cls, fields, dict(zip(names, steps, strict=True)))
        # Equinox does not set a field that was never set: so leave that to it.
    return Step("call", node.unflatten, steps)


def _step_of_module(cls: Any, fields: dict[str, Any], steps: dict[str, Step]) -> Step:
    """How to build a Module with these fields, by the steps of the dynamic ones."""
    # An activation function, or `None`, is there already.
    changing = {name: x for name, x in steps.items() if x.name != "constant"}
    fields |= dict.fromkeys(changing)
    data = cls, fields, tuple(changing), INSTANCE_DICT
    return Step("module", data, tuple(changing.values()))


def _is_plain_namedtuple(x: Any) -> bool:
    """Whether `cls(*parts)` makes a tuple and nothing else.

    Its `__new__`, which is Python, takes five times as long as making the tuple, and an
    optimiser may have forty such states.
    """
    cls = type(x)
    # In the globals of the `__new__` that `namedtuple` generates.
    made_by = getattr(cls.__new__, "__globals__", {}).get("_tuple_new")
    # Otherwise not by `namedtuple`, or registered as another node.
    is_tuple = made_by is tuple.__new__ and reader_of(x).name == "tuple"
    return is_tuple and cls.__init__ is object.__init__
