"""The compilations of a function as a table, which says what an edit saves.

Rows are compilations, and columns are what their calls differ in: a static value, the
length of an axis, a dtype, a placement. An edit keeps what it is about the same in all
calls, and so removes columns. Of rows that are then of one program, one is compiled.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from eqx_fastjit.insight.record._events import Event
from eqx_fastjit.insight.record._leaves import ancestors, is_below, Leaf
from eqx_fastjit.insight.record._programs import Program


class Column(NamedTuple):
    """Something that calls differ in."""

    path: str
    # "kind" (array, static or which node), "value" (of a static), "rank", "axis",
    # "dtype", "weak", "placement", "setting" or "function" (which one of those that a
    # line made).
    aspect: str
    axis: int = -1


class Compiled(NamedTuple):
    """A compilation of a function, with those of functions that are a part of it."""

    event: Event
    leaves: dict[str, Leaf]
    program: Program | None
    # 0 of what was compiled before the run.
    seconds: float
    is_before: bool = False


# For each row, the first row that is like it.
Partition = tuple[int, ...]


def partition(values: Iterable[Any]) -> Partition:
    """Which of some values are equal."""
    first: dict[Any, int] = {}
    return tuple(first.setdefault(value, i) for i, value in enumerate(values))


def differs_within(classes: Iterable[Any], values: Iterable[Any]) -> bool:
    """Whether values differ between rows of one class."""
    pairs = {*zip(classes, values, strict=True)}
    return len(pairs) > len({x for x, _ in pairs})


# The categories of statics of which an edit changes no part, but the whole.
_WHOLES = ("function", "container")


def _cells(leaf: Leaf, rest: Any) -> dict[Column, Any]:
    """What a leaf has for each of its columns.

    `rest`: what tells a static object from others with its class and fields.
    """
    path = leaf.path
    if leaf.kind == "configuration":
        return {Column(path, "setting"): leaf.text}
    if leaf.kind == "structure":
        return {Column(path, "kind"): (leaf.type, leaf.text)}

    cells: dict[Column, Any] = {
        Column(path, "axis", i): n for i, n in enumerate(leaf.shape)
    }
    if not leaf.of:  # the class of its owner tells whether a field is there
        cells[Column(path, "kind")] = leaf.kind
    if leaf.kind == "static":
        value = (leaf.dtype, leaf.identity, leaf.text) if rest is None else rest
        cells[Column(path, "value")] = leaf.type, value
        return cells

    cells[Column(path, "rank")] = len(leaf.shape)
    cells[Column(path, "dtype")] = leaf.dtype
    cells[Column(path, "weak")] = leaf.weak_type
    if leaf.sharding is not None:  # a tracer does not say
        cells[Column(path, "placement")] = leaf.sharding
    return cells


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """The compilations of a function, in order."""

    # The function's.
    name: str
    rows: Sequence[Compiled]

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
    def _fields(self) -> dict[str, list[str]]:
        """The leaves that are no parts of others, each with its fields that differ.

        An edit of a static object, such as a configuration, is one of its innermost
        fields. Of functions and containers it is one of the whole.
        """
        fields: dict[str, list[str]] = {}
        for path in self.varying:
            leaf = self.leaf(path)
            if leaf is None or not leaf.of:
                fields[path] = []
            # What the jitted function captures has no owner here, and is no field.
            elif leaf.holder not in _WHOLES:
                fields.get(self.owner(path), []).append(path)

        for path, inside in fields.items():
            categories = {x.category for x in self.leaves(path) if x is not None}
            if not categories.isdisjoint(_WHOLES):
                inside.clear()
            inside[:] = [x for x in inside if not any(is_below(y, x) for y in inside)]
        return fields

    def _rest(self, path: str) -> list[Any]:
        """What tells an object from others of its class with the same fields, by row.

        That is which fields it has, and which object it is of those that are alike in
        class and fields. `None` if it has no fields that differ.
        """
        if not self._fields.get(path):
            return [None] * len(self.rows)

        known: dict[Any, dict[Leaf | None, int]] = collections.defaultdict(dict)
        fields = zip(*map(self.leaves, self._fields[path]), strict=True)
        rest: list[Any] = []
        for leaf, values in zip(self.leaves(path), fields, strict=True):
            alike = known[leaf and leaf.type, values]
            is_there = tuple(x is not None for x in values)
            rest.append((is_there, alike.setdefault(leaf, len(alike))))
        return rest

    @functools.cached_property
    def values(self) -> dict[Column, tuple[Any, ...]]:
        """The values of each column; where there is no leaf, as in the next row."""
        told = {*self._fields, *itertools.chain(*self._fields.values())}
        cells: list[dict[Column, Any]] = [{} for _ in self.rows]
        for path in self.varying:
            leaves, rests = self.leaves(path), self._rest(path)
            for own, leaf, rest in zip(cells, leaves, rests, strict=True):
                for column, value in _cells(leaf, rest).items() if leaf else ():
                    # What a function captures has shapes as an argument would.
                    if path in told or column.aspect == "axis":
                        own[column] = value
        return {
            column: _filled(column, [x.get(column) for x in cells])
            for column in dict.fromkeys(itertools.chain(*cells))
        }

    @functools.cached_property
    def columns(self) -> dict[Column, Partition]:
        """The columns in which rows differ."""
        found = {column: partition(values) for column, values in self.values.items()}
        numbers = partition(row.event.function.number for row in self.rows)
        found[Column(self.name, "function")] = numbers
        return {column: ids for column, ids in found.items() if any(ids)}

    def only(self, rows: Iterable[int]) -> "Table":
        """Some of its rows."""
        return Table(self.name, [self.rows[i] for i in sorted({*rows})])

    def leaves(self, path: str) -> list[Leaf | None]:
        """A leaf in each row."""
        return [row.leaves.get(path) for row in self.rows]

    def owner(self, path: str) -> str:
        """The static object that something is a part of; else itself."""
        around = (path, *ancestors(path))
        leaves = ((x, self.leaf(x)) for x in around)
        return next((x for x, leaf in leaves if leaf and not leaf.of), path)

    def leaf(self, path: str) -> Leaf | None:
        """A leaf in the first row that has it."""
        return next(filter(None, self.leaves(path)), None)

    def alike(self, columns: Iterable[Column]) -> Partition:
        """Which rows are alike in some columns."""
        # Many columns vary together: each way of it counts once.
        known = (self.columns[x] for x in columns if x in self.columns)
        different = {*known, (0,) * len(self.rows)}
        return partition(zip(*different, strict=True))

    @functools.cached_property
    def programs(self) -> Partition:
        """Which rows are of the same program.

        One that is not known is told from others by the leaves of its call.
        """
        return partition(
            row.program.same if row.program else ("unknown", *self._unlike(i))
            for i, row in enumerate(self.rows)
        )

    def _unlike(self, i: int) -> list[Any]:
        """What tells a row whose program is not known from others, by types.

        Shapes and dtypes are other programs, and so are texts and flags. Numbers,
        functions and objects that are made again are not.
        """
        return [
            self.values[x][i]
            for x in self.columns
            if x.aspect in ("kind", "rank", "axis", "dtype") or self._chooses(x)
        ]

    def _chooses(self, column: Column) -> bool:
        """Whether a static is of a type that mostly decides what is traced."""
        leaf = self.leaf(column.path) if column.aspect == "value" else None
        return leaf is not None and leaf.category == "label"

    @functools.cached_property
    def kinds(self) -> Partition:
        """Which rows have the same kinds of operations."""
        return partition(row.program and row.program.kinds for row in self.rows)

    def left(
        self, same: Collection[Column], wide: Collection[Column] = ()
    ) -> list[list[int]]:
        """The rows in groups, of each of which one program is left by edits.

        **Arguments:**

        - `same`: the columns that edits remove, where programs are the same.
        - `wide`: those that they make the same, and so the programs.
        """
        edited = {*same, *wide}
        rest = self.alike(x for x in self.columns if x not in edited)
        wider = self.alike(x for x in self.columns if x in wide)
        groups: dict[int, dict[int, dict[int, list[int]]]] = {}
        for i, key in enumerate(rest):
            ways = groups.setdefault(key, {})
            ways.setdefault(wider[i], {}).setdefault(self.programs[i], []).append(i)

        out: list[list[int]] = []
        for ways in groups.values():
            # Rows that are alike in `wide` columns stay of several programs: the first
            # of each way become one, the second another, and so on.
            merged = itertools.zip_longest(*(x.values() for x in ways.values()))
            out += [[*itertools.chain(*filter(None, rows))] for rows in merged]
        return out

    def saved(self, same: Collection[Column], wide: Collection[Column] = ()) -> "Saved":
        """What is not compiled if these columns are the same in all calls."""
        spared: list[int] = []
        for rows in self.left(same, wide):
            # Of each program the first counts; of several, that which takes longest.
            first = {self.programs[i]: i for i in sorted(rows, reverse=True)}
            kept = max(first.values(), key=lambda i: self.rows[i].seconds)
            if any(self.rows[i].is_before for i in rows):
                kept = -1
            spared += [i for i in rows if i != kept and not self.rows[i].is_before]

        spared.sort()
        return Saved(sum(self.rows[i].seconds for i in spared), tuple(spared))


class Saved(NamedTuple):
    """What edits save: seconds, and which rows."""

    seconds: float
    rows: tuple[int, ...]

    @property
    def amount(self) -> tuple[float, int]:
        """By which it is compared. What is only traced so far has no seconds."""
        return self.seconds, len(self.rows)


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
