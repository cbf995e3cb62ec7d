"""Results in Markdown: what the command prints, and parts of the documentation."""

import statistics
import textwrap
from collections.abc import Iterable
from typing import NamedTuple

from .case import CONTENDERS
from .results_file import describe, Results
from .table import (
    EXPLANATION,
    markdown_table,
    median_cell,
    NAMES,
    number,
    ratio_cell,
    ratios_table,
    Times,
    times_table,
    TITLES,
)
from .timing import ratios


# What a results file has, for each platform.
ByDevice = dict[str, Results]

_OVER = ("eqx", "jit")


def made_by(results: Results) -> str:
    """The command, date and machine of the results, as a sentence in Markdown."""
    made = f"Made by `{results['command']}` on {results['date'][:10]}."
    return f"{made} {_escaped(describe(results))}."


def report(results: Results, dispatch: bool) -> str:
    """All results, ratios first, and what could not be timed.

    `dispatch` includes the times until calls return.
    """
    parts = []
    for mode in TITLES:
        cases = _timed(results, mode)
        if cases and (dispatch or mode != "dispatch"):
            parts += [ratios_table(cases, mode), times_table(cases, mode)]

    if parts:
        entries = [times for e in results["cases"] for times in e["times"].values()]
        timed = {contender for times in entries for contender in times}
        shown = [contender for contender in CONTENDERS if contender in timed]
        legend = [f"- {NAMES[x]}: {CONTENDERS[x]}" for x in shown]
        parts += ["\n".join(legend), textwrap.fill(EXPLANATION, 88)]

    parts.append(results.get("busy", ""))
    parts += [f"Not timed: {problem}" for problem in results["problems"]]
    return "\n\n".join(filter(None, parts))


def everything(results: Results, groups: Iterable[str]) -> str:
    """Under a heading for each group, ratios, or times where nothing is compared."""
    parts = [made_by(results)]
    for group in groups:
        tables = []
        for mode in TITLES:
            cases = _timed(results, mode, group)
            if cases:
                tables.append(ratios_table(cases, mode) or times_table(cases, mode))
        if tables:
            parts += [f"### {group.capitalize()}", *tables]
    return "\n\n".join(parts)


def times(results: Results, group: str) -> str:
    """Times of each contender for the cases of a group: until results are ready.

    Of a group without such times, those of first calls.
    """
    mode = "blocked" if _timed(results, "blocked", group) else "total"
    return times_table(_timed(results, mode, group), mode)


def side_by_side(by_device: ByDevice, group: str) -> str:
    """Times until the result is ready, and their ratios."""
    timed = {x: _timed(by_device[x], "blocked", group) for x in by_device}
    devices = [device for device in timed if timed[device]]

    head = ["case"]
    for device in devices:
        head.append(f"{device.upper()}, µs")
        head += [f"over {NAMES[rival]}" for rival in _OVER]

    rows = []
    for name in dict.fromkeys(name for device in devices for name in timed[device]):
        row = [name]
        for device in devices:
            times = timed[device].get(name, {})
            row.append(median_cell(times.get("ours", []), False))
            row += [ratio_cell(times, rival, False) for rival in _OVER]
        rows.append(row)
    return markdown_table(head, rows, "eqx_fastjit until the result is ready")


def whole_functions(by_device: ByDevice) -> str:
    """How calls of whole functions compare with each alternative, on each device."""
    heads = [device.upper() for device in by_device]
    head = ["eqx_fastjit over", *heads, *(f"{device}, dispatch" for device in heads)]

    rows = []
    for rival in ("eqx", "jit", "flat"):
        name, _, _ = CONTENDERS[rival].partition(", which")
        row = [name]
        for results in by_device.values():
            least, median, greatest = _spread(results, rival)
            row.append(f"{median:.2f} ({least:.2f}–{greatest:.2f})")  # noqa: RUF001
        for results in by_device.values():
            if rival == "eqx":
                row.append("blocks")
            else:
                row.append(f"{_spread(results, rival, 'dispatch').median:.2f}")
        rows.append(row)

    devices = [f"{name.upper()}: {device(x)}" for name, x in by_device.items()]
    return f"{markdown_table(head, rows)}\n\n{_escaped('; '.join(devices))}."


def headline(by_device: ByDevice) -> str:
    """The time of a call as a share of Equinox's, on each device, in a sentence."""
    spreads = {name: _spread(results, "eqx") for name, results in by_device.items()}
    shares = []
    for name, spread in spreads.items():
        share = f"**{100 * spread.median:.0f}%**"
        if not shares:
            share += " of `equinox.filter_jit`'s time"
        shares.append(f"{share} on a {name.upper()} ({device(by_device[name])})")

    counts = [str(len(_timed(x, "blocked", "zoo"))) for x in by_device.values()]
    least = min(spread.least for spread in spreads.values())
    greatest = max(spread.greatest for spread in spreads.values())
    sentence = (
        "Measured to a finished result, the median call takes "
        f"{' and '.join(shares)}: [{' and '.join(counts)} small functions](#how-fast), "
        f"from {100 * least:.0f}% to {100 * greatest:.0f}%."
    )
    return textwrap.fill(sentence, 92, break_on_hyphens=False)


def device(results: Results) -> str:
    """The device that the results are of, in words."""
    kind: str = results["device"]["kind"]
    if kind == "cpu":
        machine = results["machine"]
        return f"{machine['cpu']}, {machine['cores']} cores"
    return kind


def loops(results: Results) -> str:
    """What an iteration of each loop takes under Equinox, and ratios to each rival.

    These are of `eqx_fastjit.filter_jit`, and of Equinox's after `install()`.
    """
    compared = {"ours": ("eqx", "trick", "jit"), "install": ("eqx", "jit")}
    head = ["loop", "equinox, µs"]
    head += [f"over {NAMES[rival]}" for rival in compared["ours"]]
    head += [f"install() over {NAMES[rival]}" for rival in compared["install"]]

    rows = []
    titles = {entry["name"]: entry["title"] for entry in results["cases"]}
    for name, times in _timed(results, "iteration").items():
        row = [titles[name], number(statistics.median(times["eqx"]))]
        for contender, rivals in compared.items():
            # `ratio_cell` divides what is called "ours".
            as_ours = {**times, "ours": times[contender]}
            row += [ratio_cell(as_ours, rival, False) for rival in rivals]
        rows.append(row)
    table = markdown_table(head, rows, "eqx_fastjit, an iteration")
    return f"{table}\n\n{made_by(results)}"


# --- parts ----------------------------------------------------------------------------


def _timed(results: Results, mode: str, group: str = "") -> dict[str, Times]:
    """The times of all cases, or of those of a group, that were timed in this way."""
    out = {}
    for entry in results["cases"]:
        if mode not in entry["times"] or group not in ("", entry["group"]):
            continue
        times = dict(entry["times"][mode])
        if mode == "dispatch":  # Equinox's calls return when the result is ready
            times.pop("eqx", None)
        out[entry["name"]] = times
    return out


class Spread(NamedTuple):
    """The median of some ratios, the least and the greatest."""

    least: float
    median: float
    greatest: float


def _spread(results: Results, rival: str, mode: str = "blocked") -> Spread:
    """Our time over a rival's, for whole functions, of which the results have some."""
    medians = [
        statistics.median(ratios(times, rival))
        for times in _timed(results, mode, "zoo").values()
        if ratios(times, rival)
    ]
    return Spread(min(medians), statistics.median(medians), max(medians))


def _escaped(text: str) -> str:
    """Text that Markdown leaves as it is."""
    for character in "\\`*|<[":
        text = text.replace(character, f"\\{character}")
    return text
