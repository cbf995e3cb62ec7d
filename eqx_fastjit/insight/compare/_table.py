"""The compilations of a function as a table, which says what an edit saves.

Rows are compilations, and columns are what their calls differ in: a static value, the
length of an axis, a dtype, a placement. An edit keeps what it is about the same in all
calls, and so removes columns. Of rows that are then of one program, one is compiled.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from eqx_fastjit.insight.record._events import Event
from eqx_fastjit.insight.record._leaves import is_below, Leaf
from eqx_fastjit.insight.record._programs import Program
from eqx_fastjit.insight.record._why import is_operation


class Column(NamedTuple):
    """Something that calls differ in."""

    path: str
    # "kind" (array, static or which node), "value" (of a static), "rank", "axis",
    # "dtype", "weak", "placement", "setting" or "function" (which one of those that a
    # line made).
    aspect: str
    axis: int = -1


class Compilation(NamedTuple):
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


# The categories of statics of which an edit changes no part, but the whole.
_WHOLES = ("function", "container")


def _has_fields(leaf: Leaf) -> bool:
    return leaf.kind == "static" and leaf.category not in _WHOLES


def _cells(leaf: Leaf) -> dict[Column, Any]:
    """What a leaf has for each of its columns."""
    path = leaf.path
    if leaf.kind == "configuration":
        return {Column(path, "setting"): leaf.text}
    if leaf.kind == "structure":
        return {Column(path, "kind"): (leaf.type, leaf.text)}
    cells: dict[Column, Any] = {Column(path, "kind"): leaf.kind}
    cells |= {Column(path, "axis", i): n for i, n in enumerate(leaf.shape)}
    if leaf.kind == "static":
        cells[Column(path, "value")] = leaf.type, leaf.dtype, leaf.identity, leaf.text
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
    rows: Sequence[Compilation]

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
            own = [x for x in inside if (y := self.leaf(x)) and y.holder not in _WHOLES]
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
    def _values(self) -> dict[Column, tuple[Any, ...]]:
        """The value of each column in each row."""
        cells = [
            {
                column: value
                for path in self.varying
                if (leaf := row.leaves.get(path)) is not None
                for column, value in _cells(leaf).items()
                # What a function captures has shapes as an argument would.
                if path in self._told or column.aspect == "axis"
            }
            for row in self.rows
        ]
        return {
            column: _filled(column, [x.get(column) for x in cells])
            for column in dict.fromkeys(itertools.chain(*cells))
        }

    @functools.cached_property
    def columns(self) -> dict[Column, Partition]:
        """The columns in which rows differ."""
        found = {column: partition(values) for column, values in self._values.items()}
        numbers = partition(row.event.function.number for row in self.rows)
        found[Column(self.name, "function")] = numbers
        return {column: ids for column, ids in found.items() if any(ids)}

    def values(self, column: Column) -> tuple[Any, ...]:
        """What a column has in each row; where there is no leaf, as in the next one."""
        return self._values[column]

    def leaves(self, path: str) -> list[Leaf | None]:
        """A leaf in each row."""
        return [row.leaves.get(path) for row in self.rows]

    def leaf(self, path: str) -> Leaf | None:
        """A leaf in the first row that has it."""
        return next(filter(None, self.leaves(path)), None)

    def alike(self, columns: Iterable[Column]) -> Partition:
        """Which rows are alike in some columns."""
        # Many columns vary together: each way of it counts once.
        different = {*(self.columns[x] for x in columns), (0,) * len(self.rows)}
        return partition(zip(*different, strict=True))

    @functools.cached_property
    def programs(self) -> Partition:
        """Which rows are of the same program.

        One that is not known is as another one of which the same leaf texts are.
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
            self.values(x)[i]
            for x in self.columns
            if x.aspect in ("kind", "rank", "axis", "dtype")
            or (x.aspect == "value" and _chooses(self.leaf(x.path)))
        ]

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
        rest = self.alike(x for x in self.columns if x not in (*same, *wide))
        wider = self.alike(x for x in self.columns if x in wide)
        groups: dict[int, dict[int, dict[int, list[int]]]] = {}
        for i, key in enumerate(rest):
            ways = groups.setdefault(key, {})
            ways.setdefault(wider[i], {}).setdefault(self.programs[i], []).append(i)
        out: list[list[int]] = []
        for ways in groups.values():
            # Of rows that are alike in what is made the same, programs stay others.
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
        """By which it is compared. What is not compiled yet has no seconds."""
        return self.seconds, len(self.rows)


def _chooses(leaf: Leaf | None) -> bool:
    """Whether a static is of a type that mostly decides what is traced."""
    return leaf is None or leaf.category == "label"


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


# --- from events ----------------------------------------------------------------------


def shared(event: Event) -> object:
    """The same for events of which the first could have spared the others."""
    # Two lines that jit a class, say, are two functions. JAX shares nothing that is
    # compiled between stages and calls.
    line = event.frames[:1] if event.function.place is None else ()
    return event.function.key(), line, event.ahead


def tables_of(
    events: Iterable[Event], before: Iterable[Event] = ()
) -> list[tuple[Table, list[Event]]]:
    """The compilations of each function, with all their events.

    **Arguments:**

    - `events`: of a run; operations outside of jit are left out, and what failed.
    - `before`: earlier ones of the process, which may have spared some of these.
    """
    earlier = {e.number for e in before}
    by_number = {e.number: e for e in (*before, *events)}
    # The compilations of each function, each with what is a part of it.
    functions: dict[object, dict[int, list[Event]]] = {}
    cells: dict[int, int] = {}  # in which cell of a notebook a function was first seen
    for number in sorted(by_number):
        event = by_number[number]
        outermost = outermost_of(event, by_number)
        if not (outermost.failed or is_operation(outermost)):
            cell = cells.setdefault(outermost.function.number, outermost.cell)
            is_part = outermost.is_part and not outermost.ahead
            own = functions.setdefault((shared(outermost), cell, is_part), {})
            own.setdefault(outermost.number, []).append(event)
    out: list[tuple[Table, list[Event]]] = []
    for compilations in functions.values():
        rows: list[Compilation] = []
        found: list[Event] = []
        for inside in _with_stages(compilations.values()):
            event = next((e for e in inside if not e.is_part), inside[0])
            if event.is_part:
                continue
            rows.append(compilation_of(event, inside, event.number in earlier))
            found += inside
        # Of others the arguments are gone; but each function that is made again is new.
        numbers = {x.event.function.number for x in rows}
        known = [x for x in rows if x.event.signature]
        if known or len(numbers) < len(rows):
            rows = known
        if any(not x.is_before for x in rows):
            out.append((Table(rows[0].event.function.name, rows), found))
    return out


def compilation_of(
    event: Event, inside: Iterable[Event], is_before: bool = False
) -> Compilation:
    """A row: an event, with all that are a part of it."""
    return Compilation(
        event,
        {leaf.path: leaf for leaf in event.signature},
        next((e.program for e in inside if e.program), None),
        0.0 if is_before else sum(e.seconds for e in inside),
        is_before,
    )


def outermost_of(event: Event, by_number: Mapping[int, Event]) -> Event:
    """What a function was traced for, if it is a part of another one."""
    while event.is_part and (around := by_number.get(event.inside or 0)) is not None:
        event = around
    return event


def _with_stages(compilations: Iterable[list[Event]]) -> Iterator[list[Event]]:
    """With stages ahead of time as parts of the one that compiles."""
    waiting: list[list[Event]] = []
    for events in compilations:
        first = min(events, key=lambda e: e.number)
        if first.ahead and first.is_part:
            waiting.append(events)
            continue
        for stage in [x for x in waiting if x[0].signature == first.signature]:
            waiting.remove(stage)
            events = [*stage, *events]
        yield events
