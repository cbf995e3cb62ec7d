"""Results as Markdown, for the README and the documentation, and in notebooks."""

import dataclasses
from html import escape

from ._case import DESCRIPTIONS
from ._grids import Cell, EXPLANATION, Grid, grids, present, times_and_ratios
from ._results import describe, Entry, Results


# Of a brief table: the others are variants of these, or need other packages.
_BRIEF_CONTENDERS = ("jit", "flat", "eqx", "ours")


# More would have to be scrolled.
_MAX_COLUMNS = 8


def markdown(results: Results, *, brief: bool = False) -> str:
    """Tables of the results, with the command, date and machine that made them.

    **Arguments:**

    - `results`: as `load` reads them.
    - `brief`: whether to show dispatch only, and at most four contenders.

    **Returns:** Markdown, without a line break at the end.
    """
    if brief:
        results = {**results, "cases": [_brief(entry) for entry in results["cases"]]}
    parts = [
        _table(part)
        for grid in grids(results)
        for part in (
            times_and_ratios(grid) if len(grid.columns) > _MAX_COLUMNS else [grid]
        )
    ]
    parts += [
        "\n".join(
            f"- `{name}`: {DESCRIPTIONS[name]}." for name in present(results["cases"])
        ),
        EXPLANATION,
        f"Made by `{results['command']}` on {results['date'][:10]}. "
        f"{_plain(describe(results))}.",
    ]
    return "\n\n".join(parts)


def _brief(entry: Entry) -> Entry:
    times = entry["times"].get("dispatch", {})
    kept = {name: times[name] for name in _BRIEF_CONTENDERS if name in times}
    return {**entry, "times": {"dispatch": kept}}


def _plain(text: str) -> str:
    """Text that Markdown leaves as it is, in a table too."""
    for character in "\\`*_|<[":
        text = text.replace(character, "\\" + character)
    return text


def _table(grid: Grid) -> str:
    # Where a long name may be broken: zero-width spaces.
    names = [_plain(column).replace("\\_", "\\_\u200b") for column in grid.columns]
    rule = ["---"] + ["---:"] * (len(names) - 1)
    lines = [names, rule, *[list(map(_cell, row)) for row in grid.rows]]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"**{_plain(grid.title)}**\n\n{body}"


def _cell(cell: Cell) -> str:
    if cell.kind == "win":
        return f"**{cell.text}**"
    # One line for a figure and its spread: a no-break space.
    return _plain(cell.text).replace(" ±", "\u00a0±")


_STYLE = """
.eqx-fastjit th, .eqx-fastjit td { text-align: right; }
.eqx-fastjit th:first-child, .eqx-fastjit td:first-child { text-align: left; }
.eqx-fastjit .win { font-weight: bold; }
"""


@dataclasses.dataclass(frozen=True)
class Tables:
    """The tables of results, for a notebook.

    **Arguments:**

    - `results`: as `load` reads them.
    """

    results: Results

    def __str__(self) -> str:
        return markdown(self.results)

    def _repr_html_(self) -> str:
        tables = "\n".join(
            f"<h3>{escape(grid.title)}</h3>\n{grid.html()}"
            for grid in grids(self.results)
        )
        return (
            f'<style>{_STYLE}</style><div class="eqx-fastjit">{tables}'
            f"<p>{EXPLANATION}</p><p>{escape(describe(self.results))}</p></div>"
        )
