"""Groups of compilations: what changed in the program's calls, by line, leaf and cause.

A compilation is in one group, so that seconds and counts add up. One change may make
several functions compile: a smaller last batch comes to the loss and, as `len(batch)`,
to a metric. They are one group, by the lengths that changed.
"""

import collections
import dataclasses
from collections.abc import Iterable

from eqx_fastjit._describe import Cause, Difference
from eqx_fastjit._place import Place

from ._records import Record
from ._words import show_chain


@dataclasses.dataclass(eq=False)
class Group:
    """Compilations for one reason, in order."""

    records: list[Record]
    # The line that cost most, if they were called at several.
    at: Place | None = None
    # Whether they are the first of a function, also of one of the user's `jax.jit`.
    is_first: bool = False

    @property
    def first(self) -> Record:
        """The first of them, which stands for all."""
        return self.records[0]

    @property
    def main(self) -> Difference | None:
        """What differed, the most important leaf first."""
        return self.first.differences[0] if self.first.differences else None

    @property
    def leaf(self) -> str:
        """The path of the leaf that differed; empty if none did."""
        return self.main.path if self.main else ""

    @property
    def line(self) -> Place | None:
        """The user's line, of the first of them if there are several."""
        return self.at or self.first.line

    @property
    def seconds(self) -> float:
        """What they cost."""
        return sum(r.seconds for r in self.records)

    @property
    def whole(self) -> list[Record]:
        """Without functions that are a part of others."""
        return [r for r in self.records if not r.inlined] or self.records

    @property
    def functions(self) -> dict[str, int]:
        """The names of the functions, and how often each was compiled."""
        counts = collections.Counter(r.function for r in self.whole)
        return dict(counts.most_common())

    @property
    def calls(self) -> dict[str, int]:
        """Function and lines that led to it, and how often each did."""
        return dict(collections.Counter(map(self._call, self.whole)))

    def _call(self, record: Record) -> str:
        if not record.is_outside:
            return f"`{record.function}` at {show_chain(record.frames)}"
        frames = record.frames  # of many operations, the lines below do not matter
        begin = frames.index(self.at) if self.at in frames else 0
        return show_chain(frames[begin:])

    def of_leaf(self, leaf: str) -> list[Difference]:
        """What a leaf was and became, in order."""
        found = (d for r in self.whole for d in r.differences if d.path == leaf)
        return [d for d in found if self.main and d.what == self.main.what]


def group(records: Iterable[Record]) -> list[Group]:
    """All records, which are in order, in groups, the most expensive first."""
    ours: dict[object, Group] = {}
    outside: list[Record] = []
    # Functions of the user's under plain `jax.jit`, whose first compilation is apart.
    jitted: set[object] = set()
    by_number = {record.number: record for record in records}
    for record in by_number.values():
        if record.is_outside and record.place is None:
            outside.append(record)
            continue
        if record.is_outside:
            name = record.function, record.place
            is_first = name not in jitted
            jitted.add(name)
            key = *name, is_first
        else:
            is_first = record.is_first
            key = _key(_outermost(record, by_number))
        ours.setdefault(key, Group([], is_first=is_first)).records.append(record)
    groups = [*_merged(list(ours.values())), *_by_function(outside)]
    return sorted(groups, key=lambda g: -g.seconds)


def _outermost(record: Record, by_number: dict[int, Record]) -> Record:
    """What a function was traced for, if it is a part of another one."""
    while record.inside in by_number:
        record = by_number[record.inside]
    return record


def _key(record: Record) -> object:
    line = record.line and record.line[:2]
    if record.failed or record.is_first:
        return record.function, record.place, record.failed, line
    leaf = record.differences[0].path if record.differences else ""
    what = record.differences[0].what if record.differences else ""
    return record.function, record.place, line, leaf, record.cause, what


# --- one change, several functions ----------------------------------------------------


def _merged(groups: list[Group]) -> list[Group]:
    """Without groups that are there because of the lengths of another one."""
    lengths = {id(g): _lengths(g) for g in groups}
    shapes = [g for g in groups if g.first.cause is Cause.SHAPE]
    shapes.sort(key=lambda g: -len(lengths[id(g)]))
    out: list[Group] = []
    for candidate in [*shapes, *(g for g in groups if g not in shapes)]:
        own = lengths[id(candidate)]
        around = [g for g in out if g in shapes and own <= lengths[id(g)]]
        if own and around:
            around[0].records += candidate.records
            around[0].records.sort(key=lambda r: r.number)
        else:
            out.append(candidate)
    return out


def _lengths(group: Group) -> set[int]:
    """The lengths that arrays had, or the numbers that a static was."""
    found: set[int] = set()
    if group.first.failed:
        return found  # its message says more
    if group.first.cause is Cause.STATIC:
        texts = [x.text for d in group.of_leaf(group.leaf) for x in (d.old, d.new) if x]
        if all(text.isdecimal() for text in texts):
            found.update(map(int, texts))
    elif group.first.cause is Cause.SHAPE:
        for d in (d for r in group.whole for d in r.differences):
            if d.what == "shape" and d.old and d.new:
                pairs = zip(d.old.shape, d.new.shape, strict=False)
                found.update(n for pair in pairs if pair[0] != pair[1] for n in pair)
    return found


# --- outside of jit -------------------------------------------------------------------


def _by_function(records: Iterable[Record]) -> list[Group]:
    """By the user's function whose lines made JAX compile them.

    What an `__init__` makes is of the function that called the class.
    """
    functions: dict[object, list[tuple[Place | None, Record]]] = {}
    for record in records:
        calls = [x for x in record.frames if ".__init__" not in x.function]
        line = (calls or [None])[0]
        key = line and (line.file, line.function)
        functions.setdefault(key, []).append((line, record))
    out: list[Group] = []
    for found in functions.values():
        costs: collections.Counter[Place | None] = collections.Counter()
        for line, record in found:
            costs[line] += record.seconds  # pyright: ignore
        out.append(Group([r for _, r in found], costs.most_common(1)[0][0]))
    return out
