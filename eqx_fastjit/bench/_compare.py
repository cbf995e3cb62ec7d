"""What changed between two results files."""

from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from ._grids import number
from ._results import describe, Results, Spread, spread


class Change(NamedTuple):
    """One contender of one case in two results."""

    case: str
    device: str
    mode: str
    contender: str
    unit: str
    before: Spread
    after: Spread

    @property
    def percent(self) -> float:
        """How much longer the median has become."""
        return 100 * (self.after.median / self.before.median - 1)

    @property
    def within_noise(self) -> bool:
        """Whether the quartiles of the two overlap."""
        before, after = self.before, self.after
        return before.low <= after.high and after.low <= before.high


def changes(before: Results, after: Results) -> list[Change]:
    """Every time that is in both results, in the order of the second."""
    old = {(e["name"], e["device"]): e["times"] for e in before["cases"]}
    return [
        Change(
            entry["name"],
            entry["device"],
            mode,
            contender,
            entry["unit"],
            spread(old[key][mode][contender]),
            spread(values),
        )
        for entry in after["cases"]
        for mode, by in entry["times"].items()
        for contender, values in by.items()
        if contender
        in old.get(key := (entry["name"], entry["device"]), {}).get(mode, {})
    ]


def print_changes(
    console: Console, before: Results, after: Results, rows: list[Change]
) -> None:
    """Print what both were run on, and a table of the changes."""
    console.print(f"A: {before['date']}, {describe(before)}", highlight=False)
    console.print(f"B: {after['date']}, {describe(after)}", highlight=False)
    if before["machine"] != after["machine"]:
        console.print("[yellow]Not the same machine: compare ratios instead.[/]")
    table = Table()
    table.add_column("case")
    table.add_column("device")
    table.add_column("mode")
    table.add_column("contender")
    for title in ("A", "B", "change"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        style = "dim" if row.within_noise else ("red" if row.percent > 0 else "green")
        table.add_row(
            row.case,
            row.device,
            row.mode,
            row.contender,
            f"{number(row.before.median)} {row.unit}",
            f"{number(row.after.median)} {row.unit}",
            f"[{style}]{row.percent:+.1f}%{' ~' if row.within_noise else ''}[/]",
        )
    console.print(table)
    console.print("Medians. ~: the quartiles of A and B overlap.", highlight=False)
