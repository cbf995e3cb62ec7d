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

    place: str = ""
    what: str = ""
    edit: str = ""
    count: int = 0
    seconds: float = 0.0


def compare_runs(old: Run, new: Run) -> tuple[Change, ...]:
    """What two runs compile, in groups: what became worse first, then by seconds.

    Lines and directories may be others: a function is the same if its name and the name
    of its file are.
    """
    before, after = dict(_groups(old)), dict(_groups(new))
    changes: list[Change] = []
    for key in dict.fromkeys([*after, *before]):
        a, b = before.get(key, _Found()), after.get(key, _Found())
        counts, seconds = (a.count, b.count), (a.seconds, b.seconds)
        shown = b if b.count else a
        changes.append(
            Change(key[0], shown.place, shown.what, shown.edit, counts, seconds)
        )
    return tuple(sorted(changes, key=lambda x: (not x.is_worse, -max(x.seconds))))


def _groups(run: Run) -> Iterator[tuple[Any, _Found]]:
    for g in group(e for e in run.events if not is_operation(e)):
        function = g.first.function
        file = function.place and os.path.basename(function.place.file)
        key = name_of(function), file
        rest = len(g.whole), g.seconds
        if g.is_first:
            yield (*key, ""), _Found(show_place(g.line), "first call", "", *rest)
        else:
            f = finding_of(g)
            found = _Found(show_place(g.line), f.what or f.kind(), f.edit, *rest)
            yield (*key, f.cause, f.leaf), found
    if operations := [e for e in run.events if is_operation(e)]:
        seconds = sum(e.seconds for e in operations)
        found = _Found("", "operations", "", len(operations), seconds)
        yield (OUTSIDE, None, ""), found


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
