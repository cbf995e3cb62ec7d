"""Puts results into a page, for `scripts/generate_docs.py`.

The text between `<!-- bench:NAME -->` and `<!-- /bench:NAME -->` is replaced by the
tables of benchmarks/results/NAME.json, or by a short form if NAME ends with `.brief`.
"""

import re
import textwrap
from pathlib import Path
from typing import Any, NamedTuple


_MARKER = re.compile(r"^<!-- (/?)bench:([\w.-]+) -->$", re.MULTILINE)

_MISSING = "*Not measured yet.*"


# The rivals to compare ours with, and their names.
_RIVALS = {
    "jit": "`jax.jit` with the statics removed by hand",
    "flat": "`jax.jit` on a flat list of arrays",
    "eqx": "`equinox.filter_jit`",
}


class Summary(NamedTuple):
    """Ratios of ours over a rival: median, worst, and the case of the worst."""

    rival: str
    median: float
    worst: float
    case: str


class BadMarker(Exception):
    """A marker without its counterpart."""


def rendered(text: str, results: Path) -> str:
    """Regenerate the parts of a text between markers.

    **Arguments:**

    - `text`: Markdown.
    - `results`: the folder of results files.

    **Returns:** Markdown, with a note where a results file is missing. Raises
    `BadMarker`, or `BadResults` for an invalid file.
    """
    # Imported here, because asv imports this module on commits without these names.
    from eqx_fastjit.bench import load, markdown

    out, position, markers = [], 0, list(_MARKER.finditer(text))
    if len(markers) % 2:
        raise BadMarker(f"{markers[-1].group()} has no partner")
    for begin, end in zip(markers[::2], markers[1::2], strict=True):
        if begin[1] or not end[1] or begin[2] != end[2]:
            raise BadMarker(f"{begin.group()} is followed by {end.group()}")
        name = begin[2].removesuffix(".brief")
        path = results / f"{name}.json"
        tables = _MISSING.format(path.name)
        if path.exists():
            tables = markdown(load(path), brief=name != begin[2])
        out += [text[position : begin.end()], f"\n\n{tables}\n\n"]
        position = end.start()
    return "".join([*out, text[position:]])


def summaries(results: Any) -> list[Summary]:
    """Ratios of dispatch times, ours over each rival, over all cases.

    **Arguments:**

    - `results`: as returned by `eqx_fastjit.bench.load`.

    **Returns:** a `Summary` for each rival that was timed.
    """
    import statistics

    from eqx_fastjit.bench._results import ratio

    out = []
    for rival in _RIVALS:
        ratios = {
            entry["name"]: value.median
            for entry in results["cases"]
            if (value := ratio(entry, "dispatch", rival)) is not None
        }
        if ratios:
            worst = max(ratios, key=lambda name: ratios[name])
            median = statistics.median(ratios.values())
            out.append(Summary(_RIVALS[rival], median, ratios[worst], worst))
    return out


def summary_table(results: Any) -> str:
    """The summaries as a Markdown table."""
    rows = [
        f"| {s.rival} | {s.median:.2f} | {s.worst:.2f} | `{s.case}` |"
        for s in summaries(results)
    ]
    head = [
        "| ours over | median | worst | worst program |",
        "| --- | ---: | ---: | --- |",
    ]
    return "\n".join(head + rows)


def summary_line(results: Any, link: str) -> str:
    """The summaries as a sentence, for the front page.

    **Arguments:**

    - `results`: as returned by `eqx_fastjit.bench.load`.
    - `link`: the address of the tables.
    """
    parts = [
        f"{s.median:.2f} times that of {s.rival} (worst {s.worst:.2f}, `{s.case}`)"
        for s in summaries(results)
    ]
    text = (
        f"Over [{len(results['cases'])} whole programs as people write them]({link}), "
        f"the median dispatch time of a call is {', '.join(parts)}."
    )
    return textwrap.fill(text, 88, break_long_words=False, break_on_hyphens=False)


# --- start-up -------------------------------------------------------------------------

# Each way to a first result other than tracing and compiling: its name, and the limit
# of its ratio.
_STARTUP = {
    "compiled": ("compiled form", 0.15),
    "portable": ("portable form, warm persistent cache", 0.4),
    "cached": ("no export, warm persistent cache", None),
}
_CALLS = ("later calls, loaded over `filter_jit`", 1.05)


def startup_tables(results: Any) -> str:
    """The results of `benchmarks.startup`: medians, programs, and the machine."""
    import statistics

    from eqx_fastjit.bench._results import describe

    programs = results["programs"]
    by_way = {
        way: {p["name"]: _ratios(p["seconds"], way, "anew") for p in programs}
        for way in _STARTUP
    }
    by_way["calls"] = {
        p["name"]: _ratios(p["calls"], "loaded", "filter_jit") for p in programs
    }
    limits = {**_STARTUP, "calls": _CALLS}
    summary = [
        "| | programs | limit | median | 95% interval | min | max | met |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
        *[_startup_summary(*limits[way], by_way[way]) for way in limits],
    ]
    rows = [
        "| program | traced | compiled | portable | cached | calls | file |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *[_startup_row(p, by_way) for p in programs],
    ]
    refused = [
        f"- `{p['name']}`, {form}: {found['reason']}"
        for p in programs
        for form, found in p["forms"].items()
        if "reason" in found
    ]
    # Both forms usually fail for the same reason.
    reasons = dict.fromkeys(line.replace(", compiled:", ":") for line in refused)
    parts = ["\n".join(summary), "\n".join(rows)]
    if refused:
        parts.append("Not exported:\n\n" + "\n".join(reasons))
    parts.append(
        f"Made by `{results['command']}` on {results['date'][:10]}. "
        f"{describe(results)}. Importing JAX, Equinox and eqx_fastjit took "
        f"{statistics.median(results['imports']):.2f} s."
    )
    return "\n\n".join(parts)


def _ratios(times: Any, way: str, rival: str) -> list[float]:
    """The ratio of each round; empty if one of the two was not measured."""
    pairs = zip(times.get(way, ()), times.get(rival, ()), strict=False)
    return [a / b for a, b in pairs]


def _startup_summary(name: str, limit: float | None, ratios: Any) -> str:
    import statistics

    medians = sorted(statistics.median(x) for x in ratios.values() if x)
    if not medians:
        return f"| {name} | 0 | {limit or ''} | | | | | |"
    median = statistics.median(medians)
    low, high = _median_interval(medians)
    met = "" if limit is None else "yes" if median <= limit else "**no**"
    cells = [f"{x:.2f}" for x in (medians[0], medians[-1])]
    return (
        f"| {name} | {len(medians)} | {limit or ''} | {median:.2f} | {low:.2f} to "
        f"{high:.2f} | {' | '.join(cells)} | {met} |"
    )


def _median_interval(ordered: list[float]) -> tuple[float, float]:
    """The 95% confidence interval of the median of sorted values.

    It uses the binomial distribution, and assumes nothing about that of the values.
    """
    import math

    n, below, k = len(ordered), 0.0, 0
    while k < n // 2 and (below := below + math.comb(n, k) / 2**n) <= 0.025:
        k += 1
    k = max(k - 1, 0)
    return ordered[k], ordered[n - 1 - k]


def unbroken(text: str) -> str:
    """Replace spaces by no-break spaces, so that narrow tables do not wrap."""
    return text.replace(" ", "\u00a0")


def _startup_row(program: Any, by_way: Any) -> str:
    import statistics

    from eqx_fastjit._units import show_bytes, show_seconds

    def cell(way: str) -> str:
        ratios = by_way[way][program["name"]]
        if not ratios:
            return ""
        least, greatest = min(ratios), max(ratios)
        interval = unbroken(f"({least:.2f} to {greatest:.2f})")
        return f"{statistics.median(ratios):.2f} {interval}"

    sizes = [x["bytes"] for x in program["forms"].values() if "bytes" in x]
    cells = [
        unbroken(show_seconds(statistics.median(program["seconds"]["anew"]))),
        *[cell(way) for way in ("compiled", "portable", "cached")],
        cell("calls"),
        unbroken(show_bytes(sum(sizes))) if sizes else "",
    ]
    return f"| `{program['name']}` | {' | '.join(cells)} |"
