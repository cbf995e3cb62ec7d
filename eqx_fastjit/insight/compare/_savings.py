"""What it saves to mend objects: alone, in turn, and only together.

It is counted by what is left of the calls without what an edit is about.
"""

import dataclasses
from collections.abc import Collection, Iterable, Sequence

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

    def fewest(
        self, objects: Sequence[Object], chosen: Sequence[Object] = ()
    ) -> list[Object]:
        """Without those that save nothing beside the others, and the chosen ones."""
        kept = list(objects)
        saved = self.of(*kept, *chosen).amount
        for found in sorted(objects, key=self.alone):
            others = [x for x in kept if x is not found]
            if (left := self.of(*others, *chosen).amount) >= saved:
                kept, saved = others, left
        return kept

    def ordered(
        self, objects: Iterable[Object], last: Collection[Object]
    ) -> list[tuple[Object, float | None]]:
        """In order of what is saved, each with what it saves beside those before it.

        Some only save together: then the first of them has the seconds. `last` are
        those that come after all others which save anything.
        """
        left, chosen, done = list(objects), list[Object](), self.of().seconds
        out: list[tuple[Object, float | None]] = []
        while left:
            kept = [x for x in left if x not in last]
            # If none saves anything beside the others, all at once.
            together = self._next(kept, chosen) or self._next(left, chosen) or left
            chosen += together
            saved = self.of(*chosen).seconds

            first, *others = together
            out += [(first, saved - done), *((x, None) for x in others)]
            left = [x for x in left if x not in together]
            done = saved
        return out

    def _next(self, left: list[Object], chosen: list[Object]) -> list[Object]:
        """What saves most beside the chosen ones, or some that only do so together.

        Nothing if none of these saves anything.
        """
        if not left:
            return []

        done = self.of(*chosen).amount
        amounts = [self.of(x, *chosen).amount for x in left]
        if (most := max(amounts)) > done:
            return [left[amounts.index(most)]]
        if self.of(*left, *chosen).amount > done:
            return self.fewest(left, chosen)
        return []
