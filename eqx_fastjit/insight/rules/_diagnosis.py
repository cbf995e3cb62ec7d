"""What a function compiled for nothing, and which edits spare it.

Evidence and savings are two questions. Whether something had to be static is told by
the programs: what differs between calls of one program had not. What an edit saves is
counted by what is left of the calls without it.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from eqx_fastjit.insight.compare._objects import (
    is_literal,
    module_of,
    Object,
    objects_of,
)
from eqx_fastjit.insight.compare._table import (
    Column,
    Partition,
    partition,
    Saved,
    Table,
)
from eqx_fastjit.insight.record._describe import is_below


# Rules of calls of the same operations: they remove shapes and counts, not only what
# programs have in common. The first compute with other data.
OTHER_DATA = ("batch", "lengths", "dtype")
NEEDED = "other-program"

# A rule, and what to mend by it.
Edit = tuple[str, Object]


@dataclasses.dataclass(frozen=True, eq=False)
class Diagnosis:
    """What to edit so that a function compiles less."""

    table: Table
    # By rule; what has to be compiled is not among them.
    edits: tuple[Edit, ...]
    # The columns by which programs differ that edits make one.
    wide: frozenset[Column]
    # What other programs are for.
    needed: tuple[Object, ...]

    def saved(self, objects: Iterable[Object]) -> Saved:
        """What it saves to mend these."""
        columns = {c for x in objects for c in x.columns}
        return self.table.saved(columns - self.wide, columns & self.wide)

    def saved_by(self, edits: Iterable[Edit], chosen: Iterable[Object] = ()) -> Saved:
        """What edits save, with those of the chosen objects."""
        return self.saved([*chosen, *(x for _, x in edits)])

    @property
    def total(self) -> Saved:
        """What all edits save."""
        return self.saved_by(self.edits)

    def alone(self, found: Object) -> float:
        """Seconds that it saves to mend one."""
        return max(0.0, self.saved([found]).seconds - self.saved(()).seconds)

    @functools.cached_property
    def ordered(self) -> list[tuple[str, Object, float | None]]:
        """The edits, each with what it saves in addition to those before it.

        Those that keep the data come first. Some only save together: then the first of
        them has the seconds.
        """
        left, chosen, done = list(self.edits), list[Object](), self.saved(())
        out: list[tuple[str, Object, float | None]] = []
        while left:
            together = self._next(left, chosen)
            chosen += [x for _, x in together]
            saved = self.saved(chosen)
            for i, (rule, found) in enumerate(together):
                out.append((rule, found, None if i else saved.seconds - done.seconds))
            left = [x for x in left if x not in together]
            done = saved
        return out

    def _next(self, left: list[Edit], chosen: list[Object]) -> list[Edit]:
        """The edit that saves most beside the chosen ones, or some that only do so
        together.
        """
        done = self.saved(chosen).amount
        kept = [x for x in left if x[0] not in OTHER_DATA]
        for among in filter(None, (kept, left)):
            amounts = [self.saved_by([x], chosen).amount for x in among]
            if (most := max(amounts)) > done:
                return [among[amounts.index(most)]]
            if self.saved_by(among, chosen).amount > done:
                return self.fewest(among, chosen)
        return left

    def fewest(self, edits: list[Edit], chosen: Sequence[Object] = ()) -> list[Edit]:
        """Without those that save nothing beside the others."""
        saved = self.saved_by(edits, chosen).amount
        for edit in sorted(edits, key=lambda x: self.alone(x[1])):
            others = [x for x in edits if x is not edit]
            if (left := self.saved_by(others, chosen).amount) >= saved:
                edits, saved = others, left
        return edits


def diagnose(table: Table) -> Diagnosis:
    """Which objects to edit, by which rules."""
    objects = objects_of(table)
    within = [x for x in objects if x.differs_within(table.programs)]
    same = [x for x in within if not x.is_mixed]
    decides = _deciding(table, same)
    edits = [("decides" if x is decides else _rule_of_same(x), x) for x in same]
    rest = [x for x in objects if x not in same]
    others = [(rule, x) for x in rest if (rule := _rule_of_other(x))]
    wide = frozenset(c for _, x in others for c in x.columns)
    # Where these always differ as well, no two programs are the same. What cannot be
    # a shape is then told by the kinds of operations.
    edits += others
    if wide:
        edits += [
            (_rule_of_same(x), x)
            for x in rest
            if x.is_no_shape and x.differs_within(table.kinds)
            if not wide.issuperset(x.columns)
        ]
    needed = [x for x in rest if x not in (y for _, y in edits)]
    found = Diagnosis(table, tuple(edits), wide, tuple(needed))
    kept = found.fewest(edits)
    dropped = [x for _, x in edits if x in rest and x not in (y for _, y in kept)]
    return Diagnosis(table, tuple(kept), wide, (*needed, *dropped))


def _deciding(table: Table, same: Sequence[Object]) -> Object | None:
    """The object that decides between programs though it makes too many of one.

    Rows that are alike in all else, and in it, are of one program, and not without it.
    """
    removed = {c for x in same for c in x.columns}
    rest = table.alike(x for x in table.columns if x not in removed)

    def leaves_several(*ids: Partition) -> bool:
        alike = [*zip(rest, *ids, strict=True)]
        return len({*zip(alike, table.programs, strict=True)}) > len({*alike})

    if not leaves_several():
        return None
    known = [x for x in same if x.kind in ("number", "label", "object")]
    explains = [x for x in known if not leaves_several(x.ids)]
    # Of several with a value for each row, one that is no literal of the programs.
    return min(
        explains, key=lambda x: (x.count, is_literal(table, x.paths[0])), default=None
    )


# By the kind of an object that differs between calls of one program.
_SAME = {
    "function": "function",
    "callable": "function",
    "optimiser": "optimiser",
    "object": "object",
    "label": "label",
    "structure": "structure",
    "weak": "weak-type",
    "placement": "placement",
    "setting": "setting",
    "size": "lengths",
    "dtype": "dtype",
}


def _rule_of_same(found: Object) -> str:
    leaf, table = found.leaves[-1], found.table
    if found.kind == "array":
        return "array-in-static" if leaf is None or leaf.of else "static-field"
    if found.kind != "number":
        return _SAME[found.kind]
    if found.is_length and not found.differs_within(table.programs):
        return "length-number"
    if leaf is not None and leaf.of:
        return "configuration"
    if table.rows[-1].event.is_outside:
        return "static-argnames"
    return "module-number" if _is_parameter(found) else "number"


def _is_parameter(found: Object) -> bool:
    """Whether a number would be a parameter of a model if it were an array in it."""
    module = module_of(found.table, found.paths[0])
    leaves = found.table.rows[-1].leaves
    trained = any(
        leaf.kind == "array" and is_below(path, module) and leaf.dtype.startswith("f")
        for path, leaf in leaves.items()
    )
    is_float = any(x is not None and "float" in x.type for x in found.leaves)
    return bool(module) and trained and is_float


def _rule_of_other(found: Object) -> str | None:
    """The rule of an object by which programs of the same operations differ."""
    kind = found.kind
    is_alike = found.differs_within(found.table.kinds)
    if kind == "number":
        if found.is_mixed:
            return "begin-alike" if found.is_carried else "number"
        return "loop-count" if _is_loop_count(found) else None
    if kind == "weak":
        return "weak-type"
    if kind in ("size", "dtype", "structure") and found.is_carried:
        if len(found.sizes) > 2 or len(found.elements) > 2:
            return "grows"
        if str(found.leaves[0]) != "None":
            return "begin-alike"
        return "none-first" if is_alike else None
    if found.is_model or not is_alike:
        return None
    if kind == "dtype":
        return "dtype"
    # At lines of their own, sizes are there for a purpose each, such as a test set's.
    calls = partition(row.event.frames for row in found.table.rows)
    if kind not in ("size", "structure") or not found.differs_within(calls):
        return None
    sizes = found.sizes or found.elements
    if kind == "structure":
        grows = len(sizes) > 2 and all(a < b for a, b in itertools.pairwise(sizes))
        return "grows" if grows else "lengths" if sizes else None
    is_first_axis = {x.axis for x in found.own} == {0}
    is_smaller = len(sizes) == 2 and sizes[0] > sizes[1]
    return "batch" if is_smaller and is_first_axis else "lengths"


def _is_loop_count(found: Object) -> bool:
    """Whether operations of the same kinds are there more often, as a number grows.

    An `if` adds some, too; so there have to be three numbers or more.
    """
    table = found.table
    rest = table.alike(x for x in table.columns if x not in found.columns)
    classes = collections.defaultdict[Any, dict[int, int]](dict)
    for i, row in enumerate(table.rows):
        leaf = row.leaves.get(found.paths[0])
        if row.program is not None and leaf is not None and leaf.text.isdecimal():
            classes[rest[i], row.program.kinds][int(leaf.text)] = row.program.size
    return any(
        len(sizes) > 2
        and all(sizes[a] < sizes[b] for a, b in itertools.pairwise(sorted(sizes)))
        for sizes in classes.values()
    )
