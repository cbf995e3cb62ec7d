"""Two event files: what is compiled no more, more often, or anew."""

import collections
import dataclasses
import os
from collections.abc import Iterable
from typing import Any

from ._causes import Finding
from ._file import Run
from ._report import make_report
from ._why import OUTSIDE
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
    counts: tuple[int, ...]
    seconds: tuple[float, ...]

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


def compare_runs(old: Run, new: Run) -> tuple[Change, ...]:
    """What two runs compile, by the rows of their reports: what became worse first.

    Lines and directories may be others: a function is the same if its name is, and that
    of the file which calls it.
    """
    before, after = _rows(old), _rows(new)
    changes: list[Change] = []
    for key in dict.fromkeys([*after, *before]):
        runs = before[key], after[key]
        shown = (runs[1] or runs[0])[0]
        is_operation = shown.cause == OUTSIDE
        changes.append(
            Change(
                key[0],
                "" if is_operation else show_place(shown.line),
                "operations" if is_operation else shown.what or shown.attribute,
                shown.edit,
                tuple(sum(f.count for f in rows) for rows in runs),
                tuple(sum(f.seconds for f in rows) for rows in runs),
            )
        )
    return tuple(sorted(changes, key=lambda x: (not x.is_worse, -max(x.seconds))))


def _rows(run: Run) -> dict[Any, list[Finding]]:
    """The rows of a report that have all compilations: by function and cause."""
    report = make_report(run)
    found: dict[Any, list[Finding]] = collections.defaultdict(list)
    for f in (*report.findings, *report.prices, *report.others):
        function = next(iter(f.functions), "")
        file = f.line and os.path.basename(f.line.file)
        key = (OUTSIDE,) if f.cause == OUTSIDE else (function, file, f.cause, f.leaf)
        if f.count:  # not of what failed
            found[key].append(f)
    return found


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
