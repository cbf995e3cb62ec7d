"""The compilations of a function as a table, which says what an edit saves.

Rows are compilations, and columns are what their calls may differ in: the kind of a
leaf, a static value, the length of an axis, a dtype, a placement. An edit keeps what
it is about the same in all calls, and so removes columns. Of rows that are then equal,
only the first is compiled: the others are saved.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from ._describe import is_below, Leaf
from ._events import Event


class Column(NamedTuple):
    """Something that calls differ in."""

    path: str
    # "kind" (array, static or which node), "value" (of a static), "which" (function, by
    # its text), "rank", "axis", "dtype", "placement", "setting", "function" (which one
    # of those that a line made) and, without a path, "again" (compiled before, with the
    # same arguments).
    aspect: str
    axis: int = -1


class Row(NamedTuple):
    """A compilation, or an earlier call of which only the leaves are known."""

    event: Event | None
    # Of the function, which distinguishes those that one line made.
    number: int
    leaves: dict[str, Leaf]
    # Of the compilation, with the functions inside it.
    seconds: float = 0.0


class Saved(NamedTuple):
    """What an edit saves, in compilations and seconds."""

    compilations: int
    seconds: float


# For each row, the first row that is like it.
Partition = tuple[int, ...]


def partition(values: Iterable[Any]) -> Partition:
    """Which of some values are equal."""
    first: dict[Any, int] = {}
    return tuple(first.setdefault(value, i) for i, value in enumerate(values))


# The types of statics that are functions, or hold one.
FUNCTIONS = ("function", "partial", "PjitFunction")
# Those of which an edit changes no part, but the whole.
_WHOLES = (*FUNCTIONS, "list", "dict", "set", "tuple")


def _has_fields(leaf: Leaf) -> bool:
    return leaf.kind == "static" and leaf.type.rpartition(".")[2] not in _WHOLES


def _cells(leaf: Leaf) -> dict[Column, Any]:
    """What a leaf has for each of its columns."""
    path = leaf.path
    if leaf.kind == "configuration":
        return {Column(path, "setting"): leaf.text}
    if leaf.kind == "structure":
        return {Column(path, "kind"): (leaf.type, leaf.text)}
    cells: dict[Column, Any] = {Column(path, "kind"): leaf.kind}
    if leaf.kind == "static":
        cells[Column(path, "value")] = leaf.type, leaf.dtype, leaf.identity, leaf.text
        if leaf.type.rpartition(".")[2] in FUNCTIONS:  # that are made again, or others
            cells[Column(path, "which")] = leaf.type, leaf.text
        return cells
    cells[Column(path, "rank")] = len(leaf.shape)
    cells |= {Column(path, "axis", i): str(n) for i, n in enumerate(leaf.shape)}
    cells[Column(path, "dtype")] = leaf.dtype, leaf.weak_type
    if leaf.sharding is not None:  # a tracer does not say
        cells[Column(path, "placement")] = leaf.sharding
    return cells


@dataclasses.dataclass(frozen=True)
class Table:
    """The compilations of a function, in order."""

    # The function's.
    name: str
    rows: Sequence[Row]

    @functools.cached_property
    def varying(self) -> dict[str, None]:
        """The paths of leaves that are not the same in all rows, in order."""
        leaves = [row.leaves for row in self.rows]
        first = leaves[0]
        return {
            path: None
            for path in dict.fromkeys(itertools.chain(*leaves))
            if any(x.get(path) != first.get(path) for x in leaves)
        }

    @functools.cached_property
    def _told(self) -> set[str]:
        """The leaves that are no parts of others which are told.

        A static object, such as a configuration, is told by those of its fields that
        differ, if these are all that makes it another one.
        """
        told: set[str] = set()
        fields: dict[str, list[str]] = collections.defaultdict(list)
        for path in self.varying:
            leaf = self.leaf(path)
            if leaf is not None and leaf.of:
                owner = next((x for x in fields if is_below(path, x)), "")
                fields[owner].append(path)
            else:
                fields[path] = []
                told.add(path)
        for path, inside in fields.items():
            own = [x for x in inside if (y := self.leaf(x)) and y.of not in _WHOLES]
            own = [x for x in own if not any(is_below(y, x) for y in own)]
            leaves = self.leaves(path)
            if not own or not all(map(_has_fields, filter(None, leaves))):
                continue
            values = zip(*map(self.leaves, own), strict=True)
            if partition(values) == partition(leaves):
                told.remove(path)
                told.update(own)
        return told

    @functools.cached_property
    def _cells(self) -> dict[Column, tuple[Any, ...]]:
        """The value of each column in each row."""
        cells = [
            {
                column: value
                for path in self.varying
                if path in self._told
                if (leaf := row.leaves.get(path)) is not None
                for column, value in _cells(leaf).items()
            }
            for row in self.rows
        ]
        return {
            column: _filled(column, [x.get(column) for x in cells])
            for column in dict.fromkeys(itertools.chain(*cells))
        }

    @property
    def _function(self) -> Column:
        return Column(self.name, "function")

    @functools.cached_property
    def columns(self) -> dict[Column, Partition]:
        """The columns in which rows differ."""
        found = {column: partition(values) for column, values in self._cells.items()}
        found[self._function] = partition(row.number for row in self.rows)
        found = {column: ids for column, ids in found.items() if any(ids)}
        again: collections.Counter[Any] = collections.Counter()
        times: list[int] = []
        for key in self._keys(found.values()):
            times.append(again[key])
            again[key] += 1
        if any(times):
            found[Column("", "again")] = tuple(times)
        return found

    def values(self, column: Column) -> tuple[Any, ...]:
        """What a column has in each row; where there is no leaf, as in the next one."""
        return self._cells[column]

    def leaves(self, path: str) -> list[Leaf | None]:
        """A leaf in each row."""
        return [row.leaves.get(path) for row in self.rows]

    def leaf(self, path: str) -> Leaf | None:
        """A leaf in the first row that has it."""
        return next(filter(None, self.leaves(path)), None)

    def _keys(self, ids: Iterable[Partition]) -> list[Any]:
        # Many columns vary together: each way of it counts once.
        different = {*ids, (0,) * len(self.rows)}
        return list(zip(*different, strict=True))

    def classes(self, columns: Iterable[Column]) -> Partition:
        """Which rows are alike in some columns."""
        return partition(self._keys(self.columns[x] for x in columns))

    def without(self, dropped: Collection[Column]) -> Partition:
        """Which rows are alike in all columns but these."""
        ids = self.classes(x for x in self.columns if x not in dropped)
        if self._function not in dropped:
            return ids
        return partition(zip(ids, self._bodies, strict=True))

    @functools.cached_property
    def _bodies(self) -> list[int]:
        """Which of several programs each row is, of those with the same arguments.

        A function that is made once, and traces other shapes by what is not yet an
        argument, is one for each.
        """
        others = (x for x in self.columns if x != self._function and x.path)
        known: dict[int, dict[Any, int]] = collections.defaultdict(dict)
        found: list[int] = []
        for group, row in zip(self.classes(others), self.rows, strict=True):
            shapes = row.event.program[:1] if row.event else ()
            same = known[group]
            found.append(same.setdefault(shapes, len(same)) if shapes else 0)
        return found

    def saved(self, dropped: Collection[Column]) -> Saved:
        """What is not compiled if these columns are the same in all calls."""
        ids = self.without(dropped)
        lost = [row.seconds for i, row in enumerate(self.rows) if ids[i] != i]
        return Saved(len(lost), sum(lost))


def _filled(column: Column, values: list[Any]) -> tuple[Any, ...]:
    """Without gaps: where a leaf is absent, only its kind says so."""
    if column.aspect in ("kind", "setting"):
        return tuple(values)
    known = [x for x in values if x is not None][-1]
    out: list[Any] = []
    for value in reversed(values):  # it begins as what it will be
        known = known if value is None else value
        out.append(known)
    return tuple(reversed(out))


def is_decided(by: Sequence[Any], ids: Partition) -> bool:
    """Whether rows that are alike in one way are also alike in another one."""
    return len({*zip(by, ids, strict=True)}) == len({*by})
