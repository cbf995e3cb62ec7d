"""What calls differ in is found for each program by itself.

What a second class, another model or another mode is made of says nothing on why the
first was compiled several times. So it is asked what differs within a program; equal
parts of several programs are told together. What is left differs between programs.
"""

import collections
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from eqx_fastjit.insight.record._leaves import (
    ancestors,
    argument_of,
    common,
    is_below,
    Leaf,
)

from ._objects import Object
from ._selects import selecting
from ._table import Column, differs_within, Partition, Table


def objects_within(table: Table) -> list[Object]:
    """What calls of one program differ in, what changed most often first."""
    programs: dict[int, list[int]] = collections.defaultdict(list)
    for i, program in enumerate(table.programs):
        programs[program].append(i)

    # Equal parts of several programs, and the calls of these.
    parts: dict[tuple[str, str], list[Object]] = collections.defaultdict(list)
    calls: dict[tuple[str, str], list[int]] = collections.defaultdict(list)
    selects: set[tuple[str, str]] = set()
    for rows in programs.values():
        one = table.only(rows)
        found = objects_of(one)
        for x in found:
            parts[x.kind, x.path].append(x)
            calls[x.kind, x.path] += rows
        selects.update((x.kind, x.path) for x in selecting(one, found))

    joined = [
        Object(
            table.only(calls[key]),
            *key,
            own=_each(x.own for x in objects),
            copies=_each(x.copies for x in objects),
            selects=key in selects,
        )
        for key, objects in parts.items()
    ]
    return sorted(joined, key=lambda x: -x.count)


def _each(columns: Iterable[Iterable[Column]]) -> tuple[Column, ...]:
    return tuple(dict.fromkeys(x for several in columns for x in several))


def objects_of(table: Table, without: Collection[Column] = ()) -> list[Object]:
    """All that calls differ in, what changed most often first.

    `without`: columns that are told elsewhere.
    """
    originals = _originals(table)
    kinds = [x for x in table.columns if x.aspect == "kind"]
    # The outermost nodes that are not the same, and the rows in which each is alike.
    top = {
        node: table.alike(x for x in kinds if x.path == node or is_below(x.path, node))
        for node in (x.path for x in kinds)
        if not any(is_below(node, x.path) for x in kinds)
    }

    groups: dict[tuple[Any, ...], list[Column]] = {}
    for column in table.columns:
        if column not in without:
            original = originals.get(column, column)
            groups.setdefault(_key(table, original, top), []).append(column)
    found = [
        _object(table, key, columns, originals)
        for key, columns in _with_all_axes(groups)
    ]
    return sorted(found, key=lambda x: -x.count)


def _object(
    table: Table,
    key: tuple[Any, ...],
    columns: list[Column],
    originals: Mapping[Column, Column],
) -> Object:
    own = tuple(x for x in columns if x not in originals) or tuple(columns)
    kind, *rest = key
    paths = list(dict.fromkeys(x.path for x in own))
    # The shortest path first: an argument comes before what may be computed from it.
    if kind == "weak":
        own = tuple(sorted(own, key=lambda x: len(re.findall(r"[.\[<]", x.path))))
        path = own[0].path
    else:
        path = rest[0] if rest and isinstance(rest[0], str) else common(paths)
    return Object(table, kind, path, own, tuple(x for x in columns if x not in own))


def _key(table: Table, column: Column, top: Mapping[str, Partition]) -> tuple[Any, ...]:
    """The kind of an object, its path if that is known, and what tells it from others.

    Columns with the same key are one object.
    """
    path, aspect, _ = column
    ids = table.columns[column]
    if aspect in ("function", "setting"):
        return aspect, path
    if aspect in ("placement", "weak"):
        return (aspect,)
    if owner := _optimiser_of(table, path):
        return "optimiser", owner

    above = next((x for x in top if path == x or is_below(path, x)), None)
    if above is not None and not (
        # Something in it differs between calls in which the node is alike.
        aspect in ("axis", "rank", "dtype") and differs_within(top[above], ids)
    ):
        return _kind_of_other_nodes(table.leaves(above)), above
    if aspect in ("axis", "rank"):
        return "size", ids
    return ("dtype", ids) if aspect == "dtype" else _static_key(table, path, ids)


def _kind_of_other_nodes(leaves: Iterable[Leaf | None]) -> str:
    """The kind of an object that is of several kinds, or absent in some calls."""
    there = [x for x in leaves if x is not None]
    kinds = {x.kind for x in there}
    categories = {x.category for x in there if x.kind != "array"}
    if kinds == {"static", "array"} and categories == {"number"}:
        return "number"
    # `None`, which is a node, and other values that choose.
    is_label = "label" in categories and categories <= {"label", "number"}
    return "label" if is_label and "array" not in kinds else "structure"


def _static_key(table: Table, path: str, ids: Partition) -> tuple[Any, ...]:
    """That of a static value, or of a field of one."""
    owner = table.owner(path)
    if owner != path and Column(owner, "value") in table.columns:
        # It is another object, whatever its fields are.
        return _static_key(table, owner, ids)

    leaves = [x for x in table.leaves(path) if x is not None]
    categories = {x.category for x in leaves}
    if categories == {"function"}:
        # It, or what it captures: the paths of both begin with its name.
        if argument_of(path) == table.name:
            return "function", table.name
        return ("callable", path) if owner == path else ("object", owner)
    if any(x.dtype for x in leaves) or _has_arrays(table, path):
        return "array", path
    if categories in ({"number"}, {"label"}):
        return *categories, None, argument_of(path), owner != path and owner, ids
    return "object", owner


def _has_arrays(table: Table, path: str) -> bool:
    """Whether arrays are what differs in a static object."""
    inside = (x for x in table.varying if is_below(x, path))
    return any(leaf.dtype for x in inside for leaf in table.leaves(x) if leaf)


def _optimiser_of(table: Table, path: str) -> str:
    leaves = ((x, table.leaf(x)) for x in (path, *ancestors(path)))
    return next((x for x, leaf in leaves if leaf and leaf.category == "optimiser"), "")


def _with_all_axes(
    groups: dict[tuple[Any, ...], list[Column]],
) -> Iterator[tuple[tuple[Any, ...], list[Column]]]:
    """With lengths of several axes of an array as one group."""
    sizes: list[list[Column]] = []
    for key, columns in groups.items():
        if key[0] != "size":
            yield key, columns
            continue
        # With those of all arrays that are in both.
        paths = {x.path for x in columns}
        joined = [x for x in sizes if not paths.isdisjoint(y.path for y in x)]
        sizes = [x for x in sizes if x not in joined]
        sizes.append([*itertools.chain(*joined), *columns])
    for columns in sizes:
        yield ("size",), columns


# --- copies ---------------------------------------------------------------------------


def _originals(table: Table) -> dict[Column, Column]:
    """What mirrors something else, and that."""
    found: dict[Column, Column] = {}
    # By what follows the argument in a path.
    tails: dict[object, Column] = {}
    for column, ids in table.columns.items():
        if tail := column.path[len(argument_of(column.path)) :]:
            tails.setdefault(_mirrored(tail, column, ids), column)
    for column, ids in table.columns.items():
        path = column.path
        for node in ancestors(path):  # the longest tail comes last
            known = tails.get(_mirrored(path[len(node) :], column, ids))
            if known and argument_of(known.path) != argument_of(path):
                found[column] = known
    return {column: found.get(known, known) for column, known in found.items()}


def _mirrored(tail: str, column: Column, ids: Partition) -> object:
    # A dtype may come to what is computed from it in a later call.
    is_late = column.aspect in ("dtype", "weak")
    return tail, column.aspect, column.axis, None if is_late else ids
