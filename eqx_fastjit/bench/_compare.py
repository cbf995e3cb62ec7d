"""What changed between two results files."""

from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ._grids import number, present
from ._results import describe, ratio, Results, Spread, spread


# Of a case, the device it ran on, what was timed, and who.
Key = tuple[str, str, str, str]


class Change(NamedTuple):
    """One contender of one case in two results, or ours over one."""

    case: str
    device: str
    mode: str
    contender: str
    unit: str
    before: Spread
    after: Spread

    @property
    def percent(self) -> float:
        """How much greater the median has become."""
        before, after = self.before.median, self.after.median
        if before == 0:
            return 0.0 if after == 0 else float("inf")
        return 100 * (after / before - 1)

    @property
    def within_noise(self) -> bool:
        """Whether the quartiles of the two overlap."""
        before, after = self.before, self.after
        return before.low <= after.high and after.low <= before.high


class Comparison(NamedTuple):
    """What two results have in common, and what only one of them has."""

    changes: list[Change]
    gone: list[str]
    new: list[str]


def _times(results: Results) -> dict[Key, tuple[Spread, str]]:
    return {
        (entry["name"], entry["device"], mode, contender): (
            spread(values),
            entry["unit"],
        )
        for entry in results["cases"]
        for mode, by in entry["times"].items()
        for contender, values in by.items()
    }


def _ratios(results: Results) -> dict[Key, tuple[Spread, str]]:
    return {
        (entry["name"], entry["device"], mode, f"ours/{rival}"): (value, "")
        for entry in results["cases"]
        for mode in entry["times"]
        for rival in present([entry])
        if rival != "ours" and (value := ratio(entry, mode, rival)) is not None
    }


def compare(before: Results, after: Results, *, ratios: bool = False) -> Comparison:
    """Compare two results.

    **Arguments:**

    - `before`, `after`: as `load` reads them.
    - `ratios`: compare ours over each rival instead of times. They carry over from
        one machine to another, as far as anything does.

    **Returns:** a `Comparison`, in the order of `after`.
    """
    figures = _ratios if ratios else _times
    old, now = figures(before), figures(after)
    return Comparison(
        [
            Change(*key, unit, old[key][0], value)
            for key, (value, unit) in now.items()
            if key in old
        ],
        [_name(key) for key in old if key not in now],
        [_name(key) for key in now if key not in old],
    )


def _name(key: Key) -> str:
    case, device, mode, contender = key
    return f"{case} ({device}), {mode}, {contender}"


def print_comparison(
    console: Console, before: Results, after: Results, comparison: Comparison
) -> None:
    """Print what both were run on, a table of changes, and what only one has."""
    console.print(f"A: {before['date']}, {describe(before)}", markup=False)
    console.print(f"B: {after['date']}, {describe(after)}", markup=False)
    ratios = any("/" in row.contender for row in comparison.changes)
    if before["machine"] != after["machine"] and not ratios:
        console.print("[yellow]These are different machines: compare --ratios.[/]")
    table = Table()
    for title in ("case", "device", "mode", "contender"):
        table.add_column(title)
    for title in ("A", "B", "change"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in comparison.changes:
        style = "dim" if row.within_noise else ("red" if row.percent > 0 else "green")
        table.add_row(
            *map(escape, (row.case, row.device, row.mode, row.contender)),
            escape(f"{number(row.before.median)} {row.unit}".rstrip()),
            escape(f"{number(row.after.median)} {row.unit}".rstrip()),
            f"[{style}]{row.percent:+.1f}%{' ~' if row.within_noise else ''}[/]",
        )
    console.print(table)
    for name, only in (("A", comparison.gone), ("B", comparison.new)):
        if only:
            console.print(f"Only in {name}: {'; '.join(only)}", markup=False)
    console.print("Medians. ~: the quartiles of A and B overlap.", highlight=False)
