"""Results as Markdown, for the README and the documentation."""

from ._case import DESCRIPTIONS
from ._grids import EXPLANATION, Grid, grids, present
from ._results import describe, Entry, Results


# Of a brief table: the others are variants of these, or need other packages.
_BRIEF_CONTENDERS = ("jit", "flat", "eqx", "ours")


def markdown(results: Results, *, brief: bool = False) -> str:
    """Tables of the results, with the command, date and machine that made them.

    **Arguments:**

    - `results`: as `load` reads them.
    - `brief`: the dispatch alone, and no more than four contenders.

    **Returns:** Markdown, without a line break at the end.
    """
    if brief:
        results = {**results, "cases": [_brief(entry) for entry in results["cases"]]}
    parts = [_table(grid) for grid in grids(results)]
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
    lines = [
        [_plain(column) for column in grid.columns],
        ["---"] + ["---:"] * (len(grid.columns) - 1),
        *[
            [
                f"**{cell.text}**" if cell.kind == "win" else _plain(cell.text)
                for cell in row
            ]
            for row in grid.rows
        ],
    ]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"**{_plain(grid.title)}**\n\n{body}"
