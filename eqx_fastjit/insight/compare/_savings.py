"""What it saves to mend objects: alone, in turn, and only together.

It is counted by what is left of the calls without what an edit is about.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence

from ._objects import Object
from ._table import Column, Saved, Table


@dataclasses.dataclass(frozen=True, eq=False)
class Savings:
    """What it saves to mend objects of a table."""

    table: Table
    # The columns by which programs differ that edits make one.
    wide: frozenset[Column]

    def of(self, *objects: Object) -> Saved:
        """What it saves to mend these."""
        columns = {c for x in objects for c in x.columns}
        return self.table.saved(columns - self.wide, columns & self.wide)

    def alone(self, found: Object) -> float:
        """Seconds that it saves to mend one."""
        return max(0.0, self.of(found).seconds - self.of().seconds)

    def fewest(self, objects: Sequence[Object]) -> list[Object]:
        """Without those that save nothing beside the others."""
        kept = list(objects)
        saved = self.of(*kept).amount
        for found in sorted(objects, key=self.alone):
            others = [x for x in kept if x is not found]
            if (left := self.of(*others).amount) >= saved:
                kept, saved = others, left
        return kept

    def ordered(
        self, objects: Iterable[Object], last: Collection[Object]
    ) -> Iterator[tuple[Object, float | None]]:
        """In order of what is saved, each with what it saves beside those before it.

        Some only save together: then the first of them has the seconds. `last` are
        those that come after all others, and before what only saves with them.
        """
        ordered = sorted(objects, key=lambda x: (x in last, -self.alone(x)))
        chosen: list[Object] = []
        group: list[Object] = []
        done = self.of()
        for found in ordered:
            chosen.append(found)
            group.append(found)
            saved = self.of(*chosen)
            if saved.amount > done.amount or found is ordered[-1]:
                first, *others = sorted(group, key=lambda x: x not in last)
                yield first, saved.seconds - done.seconds
                yield from ((x, None) for x in others)
                group, done = [], saved
