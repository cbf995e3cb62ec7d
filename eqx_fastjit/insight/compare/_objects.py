"""What calls differ in, by the object that a user handles, rather than leaf by leaf.

An optimiser is a tuple of functions, a new length comes to several arrays, and the
moments of a model that changes change with it. What is a copy of something else is told
with the original.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from eqx_fastjit.insight.record._leaves import (
    ancestors,
    argument_of,
    common,
    is_below,
    Leaf,
)

from ._table import Column, Partition, Table


@dataclasses.dataclass(frozen=True, eq=False)
class Object:
    """An object, or a part of one, that is not the same in all calls."""

    table: Table
    # "function" (the jitted one), "optimiser", "callable", "object", "number", "label",
    # "array" (of a static object), "structure", "size", "dtype", "weak", "placement" or
    # "setting".
    kind: str
    # The path of what is mended.
    path: str
    # What differs in it; and what mirrors that.
    own: tuple[Column, ...]
    copies: tuple[Column, ...] = ()

    @property
    def columns(self) -> tuple[Column, ...]:
        """All of them."""
        return self.own + self.copies

    @functools.cached_property
    def ids(self) -> Partition:
        """In which rows it is the same."""
        return self.table.alike(self.own)

    @property
    def count(self) -> int:
        """How often it became another one."""
        return len({*self.ids}) - 1

    @functools.cached_property
    def paths(self) -> list[str]:
        """The leaves that differ, the first of which stands for all."""
        return list(dict.fromkeys(x.path for x in self.own))

    @functools.cached_property
    def leaves(self) -> list[Leaf | None]:
        """What its first leaf was, in order, each once; `None` where there was none."""
        return list(dict.fromkeys(self.table.leaves(self.paths[0])))

    @property
    def types(self) -> set[str]:
        """The types of what is static of that."""
        return {x.type for x in self.leaves if x is not None and x.kind == "static"}

    def differs_within(self, classes: Partition) -> bool:
        """Whether it differs between rows of one class."""
        pairs = {*zip(classes, self.ids, strict=True)}
        return len(pairs) > len({*classes})

    @property
    def is_no_shape(self) -> bool:
        """Whether it is of a type that nothing can take for a length.

        It is made again, such as an optimiser, or a number with a fraction, or one that
        is a literal of the programs, or the length of an array that is told itself.
        """
        if self.kind == "number":
            is_fraction = all(x is None or is_float(x) for x in self.leaves)
            is_told = is_fraction or is_literal(self.table, self.paths[0])
            return not self.is_mixed and (is_told or self.is_length)
        return self.kind in ("optimiser", "function", "callable", "object")

    @functools.cached_property
    def is_length(self) -> bool:
        """Whether it is a number that is the length of an axis wherever that is."""
        table = self.table
        numbers = [x and x.value for x in table.leaves(self.paths[0])]

        def is_length_of(x: Column) -> bool:
            rows = zip(numbers, table.values(x), table.leaves(x.path), strict=True)
            return all(a == b for a, b, leaf in rows if leaf and leaf.kind == "array")

        axes = (x for x in table.columns if x.aspect == "axis")
        return self.kind == "number" and any(map(is_length_of, axes))

    @property
    def is_mixed(self) -> bool:
        """Whether it is a number in some calls, and an array in others."""
        kinds = {x.kind for x in self.leaves if x is not None}
        return self.kind == "number" and kinds == {"static", "array"}

    @functools.cached_property
    def sizes(self) -> list[int]:
        """The lengths of the axis that differs, in order; empty if there are more."""
        lengths = {self.table.values(x) for x in self.own if x.aspect == "axis"}
        if self.kind != "size" or len(lengths) != 1:
            return []
        # A length may be a symbol.
        found = list(dict.fromkeys(lengths.pop()))
        return found if all(type(x) is int for x in found) else []

    @functools.cached_property
    def elements(self) -> list[int]:
        """Of a list, tuple or dictionary: how many elements it had, in order."""
        if self.kind != "structure":
            return []
        known = [x for x in self.leaves if x is not None and x.category == "container"]
        return [x.size for x in known] if len(known) == len(self.leaves) else []

    @functools.cached_property
    def is_carried(self) -> bool:
        """Whether an earlier call had returned what it becomes, by the traces."""
        table, returned = self.table, set[str]()
        own = [
            x
            for x in table.varying
            if any(x == y or is_below(x, y) for y in self.paths)
        ]
        before: dict[str, str] | None = None
        known, found = set[int](), list[bool]()
        for i, row in zip(self.ids, table.rows, strict=True):
            there = (x for path in own if (x := row.leaves.get(path)))
            arrays = {x.path: x.text for x in there if x.kind == "array"}
            # A shape that nothing has yet is that of the next call.
            if arrays or self.kind not in ("size", "dtype"):
                if before is not None and i not in known:
                    new = {x for path, x in arrays.items() if x != before.get(path)}
                    found.append(bool(new) and new <= returned)
                known.add(i)
                before = arrays
            returned.update(row.program.returns if row.program else ())
        return bool(found) and all(found)

    @functools.cached_property
    def is_model(self) -> bool:
        """Whether these are the parameters of models of several sizes.

        A Module of which all arrays have one length in common is data.
        """
        table = self.table
        modules = {x.path: module_of(table, x.path) for x in self.own}
        own = [x for x in self.own if modules[x.path]]
        if self.kind == "structure":
            leaves = filter(None, self.leaves)
            return bool(own) or any(map(_is_model, leaves))
        if self.kind != "size" or not own:
            return False
        top, same = modules[own[0].path], {x.path for x in own}
        is_told = any(  # `in_features`, say
            x.aspect == "value" and is_below(x.path, top) and ids == self.ids
            for x, ids in table.columns.items()
        )
        return is_told or any(
            leaf.kind == "array" and leaf.shape and is_below(path, top)
            for path, leaf in table.rows[-1].leaves.items()
            if path not in same
        )


def is_float(leaf: Leaf | None) -> bool:
    """Whether a static is a number with a fraction."""
    return leaf is not None and "float" in leaf.type


def is_literal(table: Table, path: str) -> bool:
    """Whether a number is one of the literals of the programs, mostly."""
    is_there: list[bool] = []
    for row in table.rows:
        leaf = row.leaves.get(path)
        if row.program is not None and leaf is not None and leaf.value is not None:
            is_there.append(f"{leaf.value:.6g}" in row.program.literals)
    return sum(is_there) > len(is_there) / 2


def _is_model(leaf: Leaf) -> bool:
    return leaf.kind == "structure" and leaf.category == "module"


def module_of(table: Table, path: str) -> str:
    """The path of the outermost Module that it is a part of, or nothing."""
    nodes = [x for x in ancestors(path) if (y := table.leaf(x)) and _is_model(y)]
    return nodes[-1] if nodes else ""


# --- finding them ---------------------------------------------------------------------


def objects_of(table: Table) -> list[Object]:
    """All that calls differ in, what changed most often first."""
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
    originals: dict[Column, Column],
) -> Object:
    own = tuple(x for x in columns if x not in originals) or tuple(columns)
    kind, *rest = key
    paths = list(dict.fromkeys(x.path for x in own))
    if kind == "weak":  # an argument comes before what may be computed from it
        own = tuple(sorted(own, key=lambda x: len(re.findall(r"[.\[<]", x.path))))
        path = own[0].path
    else:
        path = rest[0] if rest and isinstance(rest[0], str) else common(paths)
    copies = tuple(x for x in columns if x not in own)
    return Object(table, kind, path, own, copies)


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
        aspect in ("axis", "rank", "dtype")
        and len({*zip(top[above], ids, strict=True)}) > len({*top[above]})
    ):
        # With all that is there in some calls only.
        statics = [x for x in table.leaves(above) if x is not None]
        kinds = {x.kind for x in statics}
        is_one = kinds == {"static", "array"} and all(
            x.category == "number" for x in statics if x.kind == "static"
        )
        return "number" if is_one else "structure", above
    if aspect in ("axis", "rank"):
        return "size", ids
    return ("dtype", ids) if aspect == "dtype" else _static_key(table, path, ids)


def _static_key(table: Table, path: str, ids: Partition) -> tuple[Any, ...]:
    """That of a static value, or of a field of one."""
    leaves = [x for x in table.leaves(path) if x is not None]
    categories = {x.category for x in leaves}
    around = (path, *ancestors(path))
    outside = (x for x in around if (leaf := table.leaf(x)) is None or not leaf.of)
    owner = next(outside, around[-1])
    if categories == {"function"}:
        if argument_of(path) == table.name:  # which is passed along with the arguments
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
    around = (path, *ancestors(path))
    leaves = ((x, table.leaf(x)) for x in around)
    return next((x for x, leaf in leaves if leaf and leaf.category == "optimiser"), "")


def _with_all_axes(
    groups: dict[tuple[Any, ...], list[Column]],
) -> Iterator[tuple[tuple[Any, ...], list[Column]]]:
    """With lengths of several axes of an array as one group."""
    of_path: dict[str, list[Column]] = {}
    for key, columns in groups.items():
        if key[0] != "size":
            yield key, columns
            continue
        known = next((of_path[x.path] for x in columns if x.path in of_path), [])
        known += columns
        of_path |= dict.fromkeys([x.path for x in columns], known)
    for i, columns in enumerate({id(x): x for x in of_path.values()}.values()):
        yield ("size", i), columns


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
