"""Puts results into a page, for `scripts/generate_docs.py`.

What stands between `<!-- bench:NAME -->` and `<!-- /bench:NAME -->` becomes the tables
of benchmarks/results/NAME.json; where NAME ends with `.brief`, a short form of them.
"""

import re
import textwrap
from pathlib import Path
from typing import Any, NamedTuple


_MARKER = re.compile(r"^<!-- (/?)bench:([\w.-]+) -->$", re.MULTILINE)

# Better than a table from nowhere, and than a gap that nobody can explain.
_MISSING = "*Not measured yet: there is no `benchmarks/results/{}`.*"


# What the figures of ours are set against, and what to call it.
_RIVALS = {
    "jit": "`jax.jit` with the statics removed by hand",
    "flat": "`jax.jit` on a flat list of arrays",
    "eqx": "`equinox.filter_jit`",
}


class Summary(NamedTuple):
    """Ours over a rival: the median over cases, the worst of them, and its name."""

    rival: str
    median: float
    worst: float
    case: str


class BadMarker(Exception):
    """A marker without its partner."""


def rendered(text: str, results: Path) -> str:
    """The text with what is between markers made anew.

    **Arguments:**

    - `text`: Markdown.
    - `results`: the folder of results files.

    **Returns:** Markdown. Where there is no results file, it says so. Raises
    `BadMarker`, or `BadResults` for a file that is not right.
    """
    # Here: asv imports this module too, on commits that have no such names.
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
    """Ours over each rival, for dispatch, over all cases of some results.

    **Arguments:**

    - `results`: as `eqx_fastjit.bench.load` reads them.

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
    """The summaries as a table of Markdown."""
    rows = [
        f"| {s.rival} | {s.median:.2f} | {s.worst:.2f} | `{s.case}` |"
        for s in summaries(results)
    ]
    head = [
        "| ours over | median | worst | the worst is |",
        "| --- | ---: | ---: | --- |",
    ]
    return "\n".join(head + rows)


def summary_line(results: Any, link: str) -> str:
    """The summaries as a sentence, for a front page.

    **Arguments:**

    - `results`: as `eqx_fastjit.bench.load` reads them.
    - `link`: where the tables are.
    """
    parts = [
        f"{s.median:.2f} times that of {s.rival} (worst {s.worst:.2f}, `{s.case}`)"
        for s in summaries(results)
    ]
    text = (
        f"In the median over [{len(results['cases'])} whole programs as people write "
        f"them]({link}), the dispatch time of a call is {', '.join(parts)}."
    )
    return textwrap.fill(text, 88, break_long_words=False, break_on_hyphens=False)
