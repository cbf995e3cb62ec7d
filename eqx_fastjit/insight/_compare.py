"""Two event files: what is compiled no more, more often, or anew."""

import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import Any

from ._advice import finding_of
from ._file import Run
from ._groups import group
from ._why import is_operation, name_of, OUTSIDE
from ._words import plural, show_place, show_seconds


@dataclasses.dataclass(frozen=True)
class Change:
    """Compilations of a function for one reason, in the old run and in the new one."""

    function: str
    place: str
    # In a few words, why; and what to do.
    what: str
    edit: str
    # Compilations, and what they cost.
    counts: tuple[int, int]
    seconds: tuple[float, float]

    @property
    def status(self) -> str:
        """ "gone", "fewer", "same", "more" or "new"."""
        old, new = self.counts
        if old and new:
            return ("fewer", "same", "more")[(new > old) - (new < old) + 1]
        return "new" if new else "gone"

    @property
    def is_worse(self) -> bool:
        """Whether a build may fail because of it, as not of operations outside."""
        return self.status in ("more", "new") and self.function != OUTSIDE


@dataclasses.dataclass(frozen=True)
class _Found:
    """A group of one of the runs."""

    place: str
    what: str
    edit: str
    count: int
    seconds: float


def compare_runs(old: Run, new: Run) -> tuple[Change, ...]:
    """What two runs compile, in groups: what became worse first, then by seconds.

    Lines and directories may be others: a function is the same if its name and the name
    of its file are.
    """
    both = [dict(_groups(run)) for run in (old, new)]
    none = _Found("", "", "", 0, 0.0)
    changes: list[Change] = []
    for key in dict.fromkeys([*both[1], *both[0]]):
        before, after = (found.get(key, none) for found in both)
        shown = after if after.count else before
        counts, seconds = (before.count, after.count), (before.seconds, after.seconds)
        change = Change(key[0], shown.place, shown.what, shown.edit, counts, seconds)
        changes.append(change)
    return tuple(sorted(changes, key=lambda x: (not x.is_worse, -max(x.seconds))))


def _groups(run: Run) -> Iterator[tuple[Any, _Found]]:
    for g in group(e for e in run.events if not is_operation(e)):
        function = g.first.function
        file = function.place and os.path.basename(function.place.file)
        name, count = name_of(function), len(g.whole)
        place = show_place(g.line)
        if g.is_first:
            yield (name, file, ""), _Found(place, "first call", "", count, g.seconds)
            continue
        f = finding_of(g)
        what = f.what or f.kind()
        yield (
            (name, file, f.cause, f.leaf),
            _Found(place, what, f.edit, count, g.seconds),
        )
    operations = [e for e in run.events if is_operation(e)]
    if operations:
        seconds = sum(e.seconds for e in operations)
        yield (
            (OUTSIDE, None, ""),
            _Found("", "operations", "", len(operations), seconds),
        )


def comparison_lines(changes: Iterable[Change]) -> list[str]:
    """The comparison as text, without what is the same."""
    changes = tuple(changes)
    n = [sum(x.counts[i] for x in changes) for i in (0, 1)]
    cost = [show_seconds(sum(x.seconds[i] for x in changes)) for i in (0, 1)]
    lines = [f"{plural(n[0], 'compilation')}, {cost[0]}, became {n[1]}, {cost[1]}"]
    for x in changes:
        if x.status == "same":
            continue
        counts = f"{x.counts[0]} -> {x.counts[1]}"
        cost = " -> ".join(show_seconds(s) if s else "0" for s in x.seconds)
        where = f", {x.place}" if x.place else ""
        lines.append(f"  {x.status:<5}  {counts:>10}  {cost:>18}  {x.function}{where}")
        if x.function != OUTSIDE:
            edit = f": {x.edit}" if x.edit and x.is_worse else ""
            lines.append(f"{'':43}{x.what}{edit}".replace("`", ""))
    return lines
