"""Groups of compilations: what changed in the program's calls, by line, leaf and cause.

A compilation is in one group, so that seconds and counts add up. One change may make
several functions compile: a smaller last batch comes to the loss and, as `len(batch)`,
to a metric. They are one group, by the lengths that changed.
"""

import collections
import dataclasses
import math
from collections.abc import Iterable, Sequence

from eqx_fastjit._describe import Cause, Difference
from eqx_fastjit._place import Place

from ._records import Record


@dataclasses.dataclass
class Group:
    """Compilations for one reason, in order."""

    records: list[Record]
    # The line that stands for them, if they were called at several.
    at: Place | None = None

    @property
    def first(self) -> Record:
        """The first of them, which stands for all."""
        return self.records[0]

    @property
    def main(self) -> Difference | None:
        """What differed, the most important leaf first."""
        return self.first.differences[0] if self.first.differences else None

    @property
    def cause(self) -> Cause:
        """Why they were compiled."""
        return self.first.cause

    @property
    def is_outside(self) -> bool:
        """Whether they are of plain `jax.jit`, or of operations outside of jit."""
        return self.first.is_outside

    @property
    def is_first(self) -> bool:
        """Whether they are first calls, of which none can be spared."""
        return self.first.is_first

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
    def calls(self) -> dict[tuple[str, tuple[Place, ...]], int]:
        """Function and lines that led to it, and how often each did."""
        return dict(collections.Counter(map(self._call, self.whole)))

    def _call(self, record: Record) -> tuple[str, tuple[Place, ...]]:
        if self.is_outside:  # many operations
            frames = record.frames
            inner = frames.index(self.at) if self.at in frames else 0
            return "", frames[inner:]
        return record.function, record.frames

    def of_leaf(self, leaf: str) -> list[Difference]:
        """What a leaf was and became, in order."""
        found = (d for r in self.whole for d in r.differences if d.path == leaf)
        return [d for d in found if self.main and d.what == self.main.what]


def group(records: Iterable[Record], limit: float = math.inf) -> list[Group]:
    """All records in groups, the most expensive first.

    **Arguments:**

    - `records`: in the order in which they began.
    - `limit`: the seconds that make a group a finding.
    """
    ours: dict[object, Group] = {}
    outside: list[Record] = []
    by_number = {record.number: record for record in records}
    for record in by_number.values():
        if record.is_outside:
            outside.append(record)
        else:
            key = _key(_outermost(record, by_number))
            ours.setdefault(key, Group([])).records.append(record)
    groups = [*_merged(list(ours.values())), *_by_line(outside, limit)]
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
    shapes = sorted(filter(_is_shape, groups), key=lambda g: -len(_lengths(g)))
    others = [g for g in groups if not _is_shape(g)]
    out: list[Group] = []
    for candidate in [*shapes, *others]:
        lengths = _lengths(candidate)
        around = [g for g in out if _is_shape(g) and lengths <= _lengths(g)]
        if lengths and around:
            around[0].records += candidate.records
            around[0].records.sort(key=lambda r: r.number)
        else:
            out.append(candidate)
    return out


def _is_shape(group: Group) -> bool:
    return not group.is_outside and group.cause is Cause.SHAPE


def _lengths(group: Group) -> set[int]:
    """The lengths that arrays had, or the numbers that a static was."""
    if group.main is None:
        return set()
    if group.cause is Cause.STATIC:
        texts = [x.text for d in group.of_leaf(group.leaf) for x in (d.old, d.new) if x]
        is_int = all(text.isdecimal() for text in texts)
        return set(map(int, texts)) if is_int else set()
    if group.cause is not Cause.SHAPE:
        return set()
    found: set[int] = set()
    for r in group.whole:
        for d in r.differences:
            if d.what == "shape" and d.old and d.new:
                pairs = zip(d.old.shape, d.new.shape, strict=False)
                found.update(n for pair in pairs if pair[0] != pair[1] for n in pair)
    return found


# --- outside of jit -------------------------------------------------------------------


def _by_line(records: Sequence[Record], limit: float, depth: int = 1) -> list[Group]:
    """By the user's lines that made JAX compile them.

    A line that costs as much as the limit by itself is a group, and the rest belongs to
    the line that called it. What an `__init__` makes is one group, at the line that
    called the class.
    """
    lines: dict[object, list[Record]] = {}
    for record in records:
        outer = record.frames[-depth][:2] if len(record.frames) >= depth else None
        lines.setdefault(outer, []).append(record)
    out: list[Group] = []
    for below in lines.values():
        inside = [r for r in below if _is_inside_a_function(r, depth)]
        inner: list[Group] = []
        if sum(r.seconds for r in below) >= limit:
            inner = _by_line(inside, limit, depth + 1)
        large = [g for g in inner if g.seconds >= limit]
        told = {r.number for g in large for r in g.records}
        rest = [r for r in below if r.number not in told]
        if rest:
            frames = rest[0].frames
            large.append(Group(rest, frames[-depth] if len(frames) >= depth else None))
        out += large
    return out


def _is_inside_a_function(record: Record, depth: int) -> bool:
    if len(record.frames) <= depth:
        return False
    return not record.frames[-depth - 1].function.endswith(".__init__")
