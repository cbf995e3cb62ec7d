"""Results as tables of text, before they are printed, put on a page or in Markdown."""

import re
from html import escape
from typing import NamedTuple

from ._case import CONTENDERS
from ._results import Entry, indistinct, ratio, ratios, Results, spread


_CALLS = {
    "dispatch": "Dispatch only: until the call returns",
    "blocked": "Blocked: until the result is ready",
}
EXPLANATION = (
    "Times are medians over rounds, ± half the interquartile range. Ratios are "
    "computed in each round, and their medians may differ from the ratio of the median "
    "times. Below 1, ours is faster. ~ marks ratios whose interquartile range includes "
    "1."
)


class Cell(NamedTuple):
    """A cell. `kind` is of a ratio: `"win"`, `"loss"`, `"even"`; else empty."""

    text: str
    kind: str = ""


class Grid(NamedTuple):
    """A table. The first column holds names, the others figures."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]

    def html(self) -> str:
        """The table, whose columns' names may break where they have an underscore."""
        names = [re.sub("([_/])", r"\1<wbr>", escape(c)) for c in self.columns]
        head = "".join(f'<th scope="col">{name}</th>' for name in names)
        rows = "\n".join(f"<tr>{''.join(map(_td, row))}</tr>" for row in self.rows)
        return (
            f"<table>\n<thead><tr>{head}</tr></thead>\n"
            f"<tbody>\n{rows}\n</tbody></table>"
        )


def _td(cell: Cell) -> str:
    kind = f' class="{cell.kind}"' if cell.kind else ""
    return f"<td{kind}>{escape(cell.text)}</td>"


def number(x: float) -> str:
    """Three digits, without an exponent."""
    return f"{x:.0f}" if x >= 99.95 else f"{x:.1f}" if x >= 9.995 else f"{x:.2f}"


def present(entries: list[Entry]) -> list[str]:
    """The contenders that have a time in any of the entries, in their order."""
    names = {c for e in entries for by in e["times"].values() for c in by}
    return [c for c in CONTENDERS if c in names]


def by_device(entries: list[Entry]) -> dict[str, list[Entry]]:
    """The entries of each device."""
    devices = dict.fromkeys(e["device"] for e in entries)
    return {d: [e for e in entries if e["device"] == d] for d in devices}


def grids(results: Results) -> list[Grid]:
    """All tables of the results."""
    out = []
    for device, entries in by_device(results["cases"]).items():
        calls = {
            mode: [(e, mode, e["name"]) for e in entries if mode in e["times"]]
            for mode in _CALLS
        }
        for mode, title in _CALLS.items():
            out.append(_grid(f"{title} ({device}, microseconds a call)", calls[mode]))
        studies = [
            (e, mode, f"{e['name']}: {mode}, {e['unit']}")
            for e in entries
            for mode in e["times"]
            if mode not in _CALLS
        ]
        out.append(_grid(f"Studies ({device})", studies))
        # How the fixed cost of a call spreads over a batch.
        of_batches = [row for row in calls["blocked"] if row[0]["group"] == "batch"]
        title = "Blocked, microseconds a sample: overhead is shared by the batch"
        out.append(_grid(f"{title} ({device})", of_batches, per_sample=True))
    return [grid for grid in out if grid.rows]


def _time_cell(
    entry: Entry, mode: str, contender: str, per_sample: bool = False
) -> Cell:
    values = entry["times"][mode].get(contender)
    if values is None:
        return Cell("")
    low, median, high = spread(values)
    if per_sample:
        return Cell(number(median / entry["size"]["batch"]))
    percent = 50 * (high - low) / median if median else 0.0
    return Cell(f"{number(median)} ±{percent:.0f}%")


def _ratio_cell(entry: Entry, mode: str, rival: str) -> Cell:
    value = ratio(entry, mode, rival)
    if value is None:
        return Cell("")
    if indistinct(value):
        return Cell(f"~{value.median:.2f}", "even")
    return Cell(f"{value.median:.2f}", "win" if value.median < 1 else "loss")


def _grid(
    title: str, rows: list[tuple[Entry, str, str]], per_sample: bool = False
) -> Grid:
    contenders = present([{"times": {m: e["times"][m]}} for e, m, _ in rows])
    # Ours is in view where a screen is narrow.
    contenders.sort(key=lambda c: c != "ours")
    found = [ratios(e, m) for e, m, _ in rows if not per_sample]
    rivals = [c for c in contenders if any(c in x for x in found)]
    return Grid(
        title,
        ["case", *contenders, *[f"ours/{rival}" for rival in rivals]],
        [
            [
                Cell(label),
                *[_time_cell(entry, mode, c, per_sample) for c in contenders],
                *[_ratio_cell(entry, mode, r) for r in rivals],
            ]
            for entry, mode, label in rows
        ],
    )


def times_and_ratios(grid: Grid) -> list[Grid]:
    """A table that is too wide, as one of times and one of their ratios."""
    columns = range(len(grid.columns))
    of_ratios = [i for i in columns if "/" in grid.columns[i]]
    of_times = [i for i in columns if i not in of_ratios]

    def only(columns: list[int], title: str) -> Grid:
        return Grid(
            title,
            [grid.columns[i] for i in columns],
            [[row[i] for i in columns] for row in grid.rows],
        )

    if not of_ratios:
        return [grid]
    return [only(of_times, grid.title), only([0, *of_ratios], "The ratios of these")]


def noise(results: Results) -> list[str]:
    """A line for each mode in which the difference to a rival is within the noise."""
    found: dict[str, list[str]] = {}
    for entry in results["cases"]:
        for mode in entry["times"]:
            rivals = [r for r, x in ratios(entry, mode).items() if indistinct(x)]
            if rivals:
                text = f"{entry['name']}: ours and {', '.join(rivals)}"
                found.setdefault(f"{entry['device']}, {mode}", []).append(text)
    return [
        f"No clear difference on this machine ({mode}): {'; '.join(texts)}"
        for mode, texts in found.items()
    ]
