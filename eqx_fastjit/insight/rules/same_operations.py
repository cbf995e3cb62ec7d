"""The same operations: rules of what programs with the same operations differ in."""

import collections
import itertools
from typing import Any

from eqx_fastjit.insight.compare._objects import Object
from eqx_fastjit.insight.compare._table import partition

from ._rules import Rule


def _is_smaller(found: Object) -> bool:
    """Whether an axis became shorter, once, as that of the last batch."""
    sizes = found.sizes
    return len(sizes) == 2 and sizes[0] > sizes[1]


def _is_carried(found: Object) -> bool:
    """Whether later calls are given what an earlier one returned.

    (What is smaller is not: an array of the model may have its shape.)
    """
    is_shape = found.kind in ("size", "dtype", "structure")
    return is_shape and not _is_smaller(found) and found.is_carried


def _begins_as_none(found: Object) -> bool:
    is_none = str(found.leaves[0]) == "None"
    return is_none and _is_carried(found) and _is_alike(found)


def _begins_otherwise(found: Object) -> bool:
    if found.is_mixed:
        return found.is_carried
    is_short = len(found.lengths) < 3
    return _is_carried(found) and is_short and str(found.leaves[0]) != "None"


def _grows(found: Object) -> bool:
    sizes = found.lengths
    is_longer = len(sizes) > 2 and all(a < b for a, b in itertools.pairwise(sizes))
    return is_longer and (_is_carried(found) or _has_elements(found))


def _is_alike(found: Object) -> bool:
    """Whether it differs between programs of the same operations."""
    return found.differs_within(found.table.kinds)


def _is_data(found: Object) -> bool:
    """Whether it differs in what one line passes, and is no model.

    At lines of their own, sizes are there for a purpose each, such as a test set's.
    """
    calls = partition(row.event.frames for row in found.table.rows)
    if _is_carried(found) or found.is_model:
        return False
    return _is_alike(found) and found.differs_within(calls)


def _has_elements(found: Object) -> bool:
    return found.kind == "structure" and bool(found.elements) and _is_data(found)


def _is_batch(found: Object) -> bool:
    axes = {x.axis for x in found.own}
    return _is_smaller(found) and axes == {0} and _is_data(found)


def _has_lengths(found: Object) -> bool:
    return _has_elements(found) or (found.kind == "size" and _is_data(found))


def _is_length_number(found: Object) -> bool:
    """Whether it is a number that is the length of an axis, and changes with it."""
    return found.is_length and not found.differs_within(found.table.programs)


def _has_dtypes(found: Object) -> bool:
    is_same_program = found.differs_within(found.table.programs)
    is_data = not (_is_carried(found) or found.is_model) and _is_alike(found)
    return found.kind == "dtype" and (is_same_program or is_data)


def _is_loop_count(found: Object) -> bool:
    """Whether operations of the same kinds are there more often, as a number grows.

    An `if` adds some, too; so there have to be three numbers or more.
    """
    if found.kind != "number" or found.is_mixed:
        return False

    table = found.table
    rest = table.alike(x for x in table.columns if x not in found.columns)
    classes = collections.defaultdict[Any, dict[int, int]](dict)
    for i, row in enumerate(table.rows):
        leaf = row.leaves.get(found.paths[0])
        if row.program is not None and leaf is not None and type(leaf.value) is int:
            classes[rest[i], row.program.kinds][leaf.value] = row.program.size

    return any(
        len(sizes) > 2
        and all(sizes[a] < sizes[b] for a, b in itertools.pairwise(sorted(sizes)))
        for sizes in classes.values()
    )


LENGTH_NUMBER = Rule(
    "length-number",
    "{array} for masks and lax.dynamic_slice, the padded length for shapes",
    "{differs}, a length",
    applies=_is_length_number,
)
NEEDED = Rule("other-program", "")

RULES = (
    Rule(
        "grows",
        "begin with {room}, fill it, mask the rest",
        "{path} grows, {first_size} to {last_size}",
        applies=_grows,
    ),
    Rule(
        "none-first",
        "begin with what is used in its place",
        "{path} None first, then {then} as returned",
        applies=_begins_as_none,
    ),
    Rule(
        "begin-alike",
        "begin with {then}",
        "{path} {first} first, then {then} as returned",
        applies=_begins_otherwise,
    ),
    Rule(
        "batch",
        "leave it out, or pad and weight it",
        "a batch of {last_size} after {first_size}: {paths}",
        applies=_is_batch,
        other_data=True,
    ),
    Rule(
        "lengths",
        "pad {most}, and mask, or cut",
        applies=_has_lengths,
        other_data=True,
    ),
    Rule("dtype", "make it {dtype} in all calls", applies=_has_dtypes, other_data=True),
    Rule(
        "weak-type",
        "give it a dtype where it is made",
        "{paths} weakly typed in some calls",
        applies=lambda x: x.kind == "weak",
    ),
    Rule(
        "loop-count",
        "jax.lax.fori_loop, {array}; for shapes or gradients scan, and mask",
        "{differs}, which a loop follows",
        applies=_is_loop_count,
    ),
    LENGTH_NUMBER,
    NEEDED,
)
