"""Results in Markdown: what the command prints, and parts of the documentation."""

import statistics
import textwrap
from collections.abc import Iterable

from .case import CONTENDERS
from .results_file import describe, Results
from .table import (
    Cell,
    EXPLANATION,
    median_cell,
    NAMES,
    number,
    ratio,
    rows_of,
    Table,
    tables,
    TITLES,
)
from .timing import ratios


# What a results file has, for each platform.
ByDevice = dict[str, Results]

_OVER = ("eqx", "jit")
_COMPARED = [("ours", "eqx"), ("ours", "trick"), ("ours", "jit")]
_COMPARED += [("install", x) for x in _OVER]


def made_by(results: Results) -> str:
    """The command, date and machine of the results, as a sentence in Markdown."""
    made = f"Made by `{results['command']}` on {results['date'][:10]}."
    return f"{made} {_plain(describe(results))}."


def report(results: Results, dispatch: bool) -> str:
    """All results, ratios first, and what could not be timed.

    `dispatch` includes the times until calls return.
    """
    modes = [mode for mode in TITLES if dispatch or mode != "dispatch"]
    parts = [_markdown(x) for mode in modes for x in tables(results, [mode])[::-1]]
    timed = {c for e in results["cases"] for by in e["times"].values() for c in by}
    known = [f"- {NAMES[x]}: {CONTENDERS[x]}" for x in CONTENDERS if x in timed]
    parts += ["\n".join(known), textwrap.fill(EXPLANATION, 88)] if known else []
    parts += [results["busy"]] if results.get("busy") else []
    return "\n\n".join([*parts, *(f"Not timed: {x}" for x in results["problems"])])


def everything(results: Results, groups: Iterable[str]) -> str:
    """Under a heading for each group, ratios, or times where nothing is compared."""
    parts = [made_by(results)]
    for group in groups:
        found = [tables(_only(results, group), [mode])[-1:] for mode in TITLES]
        shown = [_markdown(table) for (table,) in filter(None, found)]
        parts += [f"### {group.capitalize()}", *shown] if shown else []
    return "\n\n".join(parts)


def times(results: Results, group: str) -> str:
    """Times of each contender for the cases of a group, until results are ready."""
    return _markdown(tables(_only(results, group), ["blocked", "total"])[0])


def side_by_side(by_device: ByDevice, group: str) -> str:
    """Times until the result is ready, and their ratios."""
    times = {
        device: {e["name"]: e["times"]["blocked"] for e in _only(x, group)["cases"]}
        for device, x in by_device.items()
    }
    times = {device: found for device, found in times.items() if found}
    columns = ["case"]
    for device in times:
        over = [f"over {NAMES[rival]}" for rival in _OVER]
        columns += [f"{device.upper()}, µs", *over]
    rows = []
    for name in dict.fromkeys(name for found in times.values() for name in found):
        row = [Cell(name)]
        for found in times.values():
            by = found.get(name, {})
            ours = median_cell(by.get("ours", [])).text.partition(" ")[0]
            row += [Cell(ours), *(ratio(by, rival, False) for rival in _OVER)]
        rows.append(row)
    return _markdown(Table("eqx_fastjit until the result is ready", columns, rows))


def whole_functions(by_device: ByDevice) -> str:
    """How calls of whole functions compare with each alternative, on each device."""
    heads = [device.upper() for device in by_device]
    columns = ["eqx_fastjit over", *heads, *(f"{head}, dispatch" for head in heads)]
    ready = [_summary(x, "zoo") for x in by_device.values()]
    returned = [_summary(x, "zoo", "dispatch") for x in by_device.values()]
    rows = []
    for rival in ("eqx", "jit", "flat"):
        spread = [
            f"{median:.2f} ({low:.2f}–{high:.2f})"  # noqa: RUF001
            for median, low, high in (x[rival] for x in ready)
        ]
        later = ["blocks" if rival == "eqx" else f"{x[rival][0]:.2f}" for x in returned]
        rows.append([CONTENDERS[rival].partition(", which")[0], *spread, *later])
    named = "; ".join(f"{x.upper()}: {device(y)}" for x, y in by_device.items())
    return f"{markdown_table(columns, rows)}\n\n{_plain(named)}."


def headline(by_device: ByDevice) -> str:
    """The time of a call as a share of Equinox's, on each device, in a sentence."""
    found = {name: _summary(x, "zoo")["eqx"] for name, x in by_device.items()}
    of = (" of `equinox.filter_jit`'s time", "")
    shares = " and ".join(
        f"**{100 * median:.0f}%**{what} on a {name.upper()} ({device(by_device[name])})"
        for (name, (median, *_)), what in zip(found.items(), of, strict=False)
    )
    low, high = min(x[1] for x in found.values()), max(x[2] for x in found.values())
    counts = (f"{len(_only(x, 'zoo')['cases'])}" for x in by_device.values())
    sentence = (
        f"Measured to a finished result, the median call takes {shares}: "
        f"[{' and '.join(counts)} small functions](#how-fast), from {100 * low:.0f}% "
        f"to {100 * high:.0f}%."
    )
    return textwrap.fill(sentence, 92, break_on_hyphens=False)


def device(results: Results) -> str:
    """The device that the results are of, in words."""
    machine, kind = results["machine"], results["device"]["kind"]
    return f"{machine['cpu']}, {machine['cores']} cores" if kind == "cpu" else kind


def loops(results: Results) -> str:
    """What an iteration of each loop takes under Equinox, and ratios."""
    cases = [e for e in results["cases"] if "iteration" in e["times"]]
    rows = []
    for entry in cases:
        by = entry["times"]["iteration"]
        equinox = Cell(number(statistics.median(by["eqx"])))
        cells = [
            ratio({**by, "ours": by[who]}, rival, False) for who, rival in _COMPARED
        ]
        rows.append([Cell(entry["title"]), equinox, *cells])
    columns = ["loop", "equinox, µs"]
    columns += [
        f"{'install() ' * (who == 'install')}over {NAMES[rival]}"
        for who, rival in _COMPARED
    ]
    table = _markdown(Table("eqx_fastjit, an iteration", columns, rows))
    return f"{table}\n\n{made_by(results)}"


def markdown_table(head: list[str], rows: list[list[str]]) -> str:
    """A table whose first column has names, and the others figures."""
    columns = []
    for i, column in enumerate(zip(head, *rows, strict=True)):
        width, side = max(3 + bool(i), *map(len, column)), "<>"[bool(i)]
        name, *cells = [f"{x:{side}{width}}" for x in column]
        columns.append([name, f"{'-' * (width - bool(i))}{':' * bool(i)}", *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in zip(*columns, strict=True))


# --- parts ----------------------------------------------------------------------------


def _only(results: Results, group: str) -> Results:
    found = [e for e in results["cases"] if group in ("", e["group"])]
    return {**results, "cases": found}


def _summary(
    results: Results, group: str, mode: str = "blocked"
) -> dict[str, tuple[float, float, float]]:
    """The median, least and greatest of the ratios of a group to each rival."""
    out = {}
    rows = rows_of(_only(results, group), mode)
    for rival in ("eqx", "jit", "flat"):
        found = [ratios(by, rival) for _, by in rows]
        if medians := list(map(statistics.median, filter(None, found))):
            out[rival] = statistics.median(medians), min(medians), max(medians)
    return out


def _markdown(table: Table) -> str:
    head = [_plain(column) for column in table.columns]
    body = markdown_table(head, [[_cell(cell) for cell in row] for row in table.rows])
    return f"**{_plain(table.title)}**\n\n{body}"


def _cell(cell: Cell) -> str:
    # No-break spaces keep a figure and its interval together, and titles may wrap.
    text = _plain(cell.text)
    text = text.replace(" ", "\u00a0") if text[:1].isdigit() else text
    return f"**{text}**" if cell.is_faster else text


def _plain(text: str) -> str:
    """Text that Markdown leaves as it is."""
    for character in "\\`*|<[":
        text = text.replace(character, f"\\{character}")
    return text
