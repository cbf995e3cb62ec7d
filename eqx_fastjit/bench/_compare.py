"""What changed between two results files."""

from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ._grids import number
from ._results import describe, ratios, Results, Spread, spread


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


# By case, device, what was timed, who, and the unit.
Figures = dict[tuple[str, str, str, str, str], Spread]


def _figures(results: Results, are_ratios: bool) -> Figures:
    out: Figures = {}
    for e in results["cases"]:
        for mode, by in e["times"].items():
            key = e["name"], e["device"], mode
            if are_ratios:
                out |= {(*key, f"ours/{r}", ""): x for r, x in ratios(e, mode).items()}
            else:
                out |= {(*key, c, e["unit"]): spread(v) for c, v in by.items()}
    return out


def compare(before: Results, after: Results, *, ratios: bool = False) -> Comparison:
    """Compare two results, in the order of `after`.

    With `ratios`, ours over each rival instead of times: they carry over from one
    machine to another, as far as anything does.
    """
    old, now = _figures(before, ratios), _figures(after, ratios)
    return Comparison(
        [Change(*key, old[key], value) for key, value in now.items() if key in old],
        [name_of(key) for key in old if key not in now],
        [name_of(key) for key in now if key not in old],
    )


def name_of(figure: tuple[Any, ...]) -> str:
    """The name of a `Change`, or of one of `Figures`."""
    case, device, mode, contender, *_ = figure
    return f"{case} ({device}), {mode}, {contender}"


def print_comparison(
    console: Console, before: Results, after: Results, comparison: Comparison
) -> None:
    """Print what both were run on, a table of changes, and what only one has."""
    console.print(f"A: {before['date']}, {describe(before)}", markup=False)
    console.print(f"B: {after['date']}, {describe(after)}", markup=False)
    are_ratios = any("/" in row.contender for row in comparison.changes)
    if before["machine"] != after["machine"] and not are_ratios:
        console.print("[yellow]These are different machines: compare --ratios.[/]")
    table = Table("case", "device", "mode", "contender")
    for title in ("A", "B", "change"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in comparison.changes:
        style = "dim" if row.within_noise else ("red" if row.percent > 0 else "green")
        medians = [f"{number(x.median)} {row.unit}".rstrip() for x in row[-2:]]
        table.add_row(
            *map(escape, (*row[:4], *medians)),
            f"[{style}]{row.percent:+.1f}%{' ~' if row.within_noise else ''}[/]",
        )
    console.print(table)
    for name, only in (("A", comparison.gone), ("B", comparison.new)):
        if only:
            console.print(f"Only in {name}: {'; '.join(only)}", markup=False)
    console.print("Medians. ~: the quartiles of A and B overlap.", highlight=False)
