"""What is special about a root: a ragged batch, an optimiser that is made again, ...

By it the table of causes has a sentence and a fix.
"""

import itertools

from eqx_fastjit._facts import is_users

from ._describe import Cause, is_below, Leaf, parent, WRAPPED
from ._roots import is_in_module, is_number, NUMBER, Root
from ._savings import FUNCTIONS, is_decided


_CONTAINERS = {"list", "dict", "set", "tuple", "frozenset"}


def attribute_of(root: Root) -> str:
    """The attribute of its cause; the cause itself if nothing is special."""
    if root.cause in _BY_CAUSE:
        return _BY_CAUSE[root.cause](root) or root.cause.value
    if root.own[0].aspect != "again":
        return root.cause.value
    # Under `jax.grad`, say, arrays are tracers, which do not say where they are.
    traced = [
        any(x.sharding is None for x in row.leaves.values()) for row in root.table.rows
    ]
    return "transformed" if is_decided(traced, root.ids) else "nothing differs"


def fields_of(root: Root) -> list[str]:
    """The fields of static objects in which it differs, the innermost of them."""
    table = root.table
    found = [
        path
        for path in table.varying
        if any(path == x or is_below(path, x) for x in root.paths)
        if any(leaf is not None and leaf.of for leaf in table.leaves(path))
    ]
    return [x for x in found if not any(is_below(y, x) for y in found)]


# What may be decided by a value, so that the traces tell more than its type does.
_NUMBERS = {
    "number",
    "number of a model",
    "number under jax.jit",
    "number of a configuration",
}
_VALUES = {*_NUMBERS, "type", "container"}


def _of_value(root: Root) -> str | None:
    """Of a static, by its type and by what follows it in the traces."""
    found = _of_static(root)
    known = root.follows if found in {None, "flag", *_VALUES} else ""
    if known == "nothing" and found != "type":
        return "unused"
    if known == "operations" and (found in _NUMBERS or _is_name(root)):
        return "branches"
    if found is None or found == "flag":  # it decides what is traced
        return found
    if found == "number of a configuration" and known != "literals":
        # So may a field that is no number.
        leaves = (x for path in fields_of(root) for x in root.table.leaves(path) if x)
        if not all(map(is_number, leaves)):
            return None
    if known == "count" and found in _NUMBERS:
        return "loop count"
    return "stays" if known in ("count", "operations", "shapes") else found


def _is_name(root: Root) -> bool:
    """Whether it is text, or a member of an enumeration, that chooses."""
    return all(
        x is not None
        and (
            x.type in ("str", "NoneType")
            or x.text.startswith(f"{x.type.rpartition('.')[2]}.")
        )
        for x in root.leaves
    )


def _of_static(root: Root) -> str | None:
    leaves = [x for x in root.leaves if x is not None]
    statics = [x for x in leaves if x.kind == "static"]
    kinds, types = {x.kind for x in leaves}, {x.type for x in statics}
    if kinds != {"static"} or len(leaves) != len(root.leaves):
        is_number = kinds == {"static", "array"} and all(map(NUMBER.fullmatch, types))
        return "number and array" if is_number else None
    owner = root.table.leaf(parent(root.leaf))
    if is_optimiser(owner):
        return "optimiser"
    again = any(
        x.text == y.text and x.type == y.type for x, y in itertools.pairwise(statics)
    )
    if all(x.type.rpartition(".")[2] in FUNCTIONS for x in statics):
        return None if root.own[0].aspect == "which" else _of_made(root)
    if any(x.dtype for x in statics):
        return "array"
    if again and not (statics[0].of or types <= _CONTAINERS):
        return "created again"  # its fields do not tell which one it is
    if found := _of_fields(root):
        return found
    if len(types) == 1 and types <= _CONTAINERS:
        return "container"  # whose texts may be the same: of long ones, or by order
    if again:
        return "created again"
    if types == {"bool"} and owner is None:
        return "flag"
    found = _of_numbers(statics)
    event = root.table.rows[-1].event
    if found != "number" or event is None:
        return found
    place = event.function.place
    if is_in_module(root.table, root.leaf):
        # A library's function takes what it takes, such as a solver with its tolerance.
        is_users_own = place is None or is_users(place.file)
        return "number of a model" if is_users_own else found
    return "number under jax.jit" if event.is_outside and owner is None else found


def is_optimiser(leaf: Leaf | None) -> bool:
    """Whether it is one of optax."""
    return leaf is not None and "GradientTransformation" in leaf.type


def _of_numbers(leaves: list[Leaf]) -> str | None:
    """Of numbers with several values. A flag decides what is traced."""
    kinds = {x.type.removeprefix("numpy.").rstrip("0123456789") for x in leaves}
    if not all(NUMBER.fullmatch(x.type) for x in leaves) or "bool" in kinds:
        return None
    values = {complex(x.text.partition("(")[2].rstrip(")") or x.text) for x in leaves}
    return "type" if len(values) == 1 and len(kinds) > 1 else "number"


def _of_fields(root: Root) -> str | None:
    """Of an object with fields, by those in which it differs."""
    paths = fields_of(root)
    leaves = [x for path in paths for x in root.table.leaves(path) if x is not None]
    if any(x.dtype for x in leaves):
        return "array"
    leaves = [x for x in leaves if x.of not in FUNCTIONS]
    return "number of a configuration" if any(map(is_number, leaves)) else None


def _of_made(root: Root) -> str:
    """Of a function that is made again: what of it is not."""
    if inner_of(root) is not None:
        return "wrapper"
    return "closure" if cells_of(root) else "created again"


def cells_of(root: Root) -> list[str]:
    """What differs in the closure of a function, but for one that it wraps."""
    found = (x for x in fields_of(root) if not x.endswith(WRAPPED))
    return [x for x in found if x not in root.paths]


def inner_of(root: Root) -> Leaf | None:
    """What is wrapped, if it is the same in all calls."""
    paths = (f"{root.leaf}{x}" for x in (WRAPPED, ".func"))
    leaves, varying = root.table.rows[-1].leaves, root.table.varying
    same = (leaves[x] for x in paths if x in leaves and x not in varying)
    return next((leaf for leaf in same if leaf.of), None)


def _of_structure(root: Root) -> str | None:
    leaves = [x for x in root.leaves if x is not None]
    types = {x.type for x in leaves}
    is_model = any(x.is_module for x in leaves)
    if "NoneType" in types:
        if not root.is_carried:
            return "optional"
        return "initial model" if is_model else "initial value"
    if is_model or is_in_module(root.table, root.leaf):
        return "models"
    return "grows" if types in ({"list"}, {"tuple"}) else None


def _of_shape(root: Root) -> str:
    if root.is_model:
        return "models"
    if root.is_growing:
        return "buffer"
    if root.is_ragged:
        return "ragged batch"
    return "two lengths" if len(root.leaves) == 2 else "lengths"


def _of_dtype(root: Root) -> str | None:
    before, after = (root.table.rows[i].leaves.get(root.leaf) for i in root.changes[0])
    if before is None or after is None:
        return None
    if before.dtype == after.dtype:
        return "weak type"
    old, new = before.dtype, after.dtype
    if old.startswith("key<") or new.startswith("key<"):
        return "keys"
    whole = ("bool", "int", "uint")
    becomes = old.startswith(whole) and not new.startswith(whole)
    return "becomes float" if becomes else None


_BY_CAUSE = {
    Cause.NEW_FUNCTION: _of_made,
    Cause.STATIC: _of_value,
    Cause.STRUCTURE: _of_structure,
    Cause.SHAPE: _of_shape,
    Cause.DTYPE: _of_dtype,
}
