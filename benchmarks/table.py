"""Results as tables: on a terminal, and in Markdown for the documentation."""

import statistics
from typing import NamedTuple

from .case import CONTENDERS
from .results_file import describe, Results
from .timing import CALL_MODES, Interval, interval, ratios, STAGES


NAMES = {
    "jit": "jax.jit",
    "flat": "flat",
    "eqx": "equinox",
    "ours": "ours",
    "eager": "no jit",
}
RIVALS = ("jit", "flat", "eqx", "eager")
_TITLES = {
    "dispatch": "Until the call returns, microseconds",
    "blocked": "Until the result is ready, microseconds",
    "first": "First calls by stage, milliseconds",
}
EXPLANATION = (
    "All contenders take turns in each round. Times are medians over rounds, ± half of "
    "their 95% confidence interval. Ratios are medians over rounds, too, with their "
    "interval in parentheses. Below 1, eqx_fastjit is faster. A ratio is bold if its "
    "whole interval is below 1."
)


class Cell(NamedTuple):
    """A cell. `kind` says what a ratio shows: `"faster"`, `"slower"`, or neither."""

    text: str
    kind: str = ""


class Table(NamedTuple):
    """A table, whose first column has names, and the others figures."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]


def number(x: float) -> str:
    """Three digits, without an exponent."""
    return f"{x:.0f}" if x >= 99.95 else f"{x:.1f}" if x >= 9.995 else f"{x:.2f}"


def median_cell(values: list[float]) -> Cell:
    """A median with half of its interval in percent."""
    if not values:
        return Cell("")
    low, median, high = interval(values)
    percent = 50 * (high - low) / median if median else 0.0
    return Cell(f"{number(median)} ±{percent:.0f}%")


def ratio_cell(x: Interval) -> Cell:
    """A ratio with its interval."""
    kind = "faster" if x.high < 1 else "slower" if x.low > 1 else ""
    return Cell(f"{x.median:.2f} ({x.low:.2f}–{x.high:.2f})", kind)  # noqa: RUF001


# The name of a row, and the times of each contender.
Row = tuple[str, dict[str, list[float]]]


def _tables(title: str, rows: list[Row]) -> list[Table]:
    """The times, and the ratios."""
    found = {name for _, times in rows for name in times}
    names = [name for name in NAMES if name in found]
    rivals = [x for x in RIVALS if any(ratios(times, x) for _, times in rows)]
    of_times = [
        [Cell(case), *(median_cell(times.get(name, [])) for name in names)]
        for case, times in rows
    ]
    of_ratios = [
        [Cell(case), *(_ratio(times, rival) for rival in rivals)]
        for case, times in rows
    ]
    columns = ["case", *(NAMES[name] for name in names)]
    over = ["case", *(f"ours/{NAMES[name]}" for name in rivals)]
    out = [Table(title, columns, of_times)]
    return [*out, Table("The same, as ratios", over, of_ratios)] if rivals else out


def _ratio(times: dict[str, list[float]], rival: str) -> Cell:
    found = ratios(times, rival)
    return ratio_cell(interval(found)) if found else Cell("")


def tables(results: Results) -> list[Table]:
    """All tables of what a results file has."""
    cases = results["cases"]
    by_title = {
        _TITLES[mode]: [
            (e["name"], e["times"][mode]) for e in cases if mode in e["times"]
        ]
        for mode in CALL_MODES
    }
    by_title[_TITLES["first"]] = [
        (f"{e['name']}, {stage}", e["times"][stage])
        for e in cases
        for stage in STAGES
        if any(map(any, e["times"].get(stage, {}).values()))
    ]
    return [t for title, rows in by_title.items() if rows for t in _tables(title, rows)]


# --- on a terminal --------------------------------------------------------------------


def print_results(console, results: Results) -> None:
    """Print all tables, and what could not be timed, on a console of rich."""
    for table in tables(results):
        console.print(_for_rich(table))
    names = {c for e in results["cases"] for by in e["times"].values() for c in by}
    for name in filter(names.__contains__, CONTENDERS):
        console.print(f"{NAMES[name]}: {CONTENDERS[name]}", highlight=False)
    if results["cases"]:
        console.print(EXPLANATION, highlight=False)
    for line in results["problems"]:
        console.print(f"Not timed: {line}", style="red", highlight=False, markup=False)


def _for_rich(table: Table):
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    styles = {"faster": "bold green", "slower": "bold red", "": ""}
    out = RichTable(
        title=table.title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    out.add_column(table.columns[0], no_wrap=True)
    for column in table.columns[1:]:
        out.add_column(column.replace("/", "/\n"), justify="right", no_wrap=True)
    for row in table.rows:
        out.add_row(*[Text(cell.text, styles[cell.kind]) for cell in row])
    return out


# --- in Markdown ----------------------------------------------------------------------


def markdown(results: Results, group: str = "") -> str:
    """Tables of a results file, for the documentation.

    **Arguments:**

    - `results`: what a results file has.
    - `group`: which cases to show; by default all.

    **Returns:** Markdown, without a line break at the end.
    """
    cases = [e for e in results["cases"] if group in ("", e["group"])]
    found = tables({**results, "cases": cases})
    return "\n\n".join(map(_markdown_table, found))


def made_by(results: Results) -> str:
    """The command, date and machine of the results, as a sentence in Markdown."""
    made = f"Made by `{results['command']}` on {results['date'][:10]}."
    return f"{made} {_plain(describe(results))}."


def _markdown_table(table: Table) -> str:
    rule = ["---"] + ["---:"] * (len(table.columns) - 1)
    head = [_plain(column) for column in table.columns]
    rows = [head, rule, *[[_markdown_cell(c) for c in row] for row in table.rows]]
    body = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return f"**{table.title}**\n\n{body}"


def _markdown_cell(cell: Cell) -> str:
    # No-break spaces, so that narrow columns keep a figure and its interval together.
    text = _plain(cell.text).replace(" ", "\u00a0")
    return f"**{text}**" if cell.kind == "faster" else text


def _plain(text: str) -> str:
    """Text that Markdown leaves as it is."""
    for character in "\\`*_|<[":
        text = text.replace(character, f"\\{character}")
    return text


def summary(
    results: Results, group: str, mode: str = "dispatch"
) -> dict[str, tuple[float, float, str]]:
    """How the calls of a group of cases compare with each rival.

    **Returns:** for each rival: the median ratio, the worst, and the case of the worst.
    """
    out = {}
    for rival in RIVALS:
        found = {
            e["name"]: statistics.median(ratios(e["times"][mode], rival))
            for e in results["cases"]
            if e["group"] == group and rival in e["times"].get(mode, ())
        }
        if found:
            worst = max(found, key=found.__getitem__)
            out[rival] = (statistics.median(found.values()), found[worst], worst)
    return out
