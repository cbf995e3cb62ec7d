"""Puts results into a page, for `scripts/generate_docs.py`.

What stands between `<!-- bench:NAME -->` and `<!-- /bench:NAME -->` becomes the tables
of benchmarks/results/NAME.json; where NAME ends with `.brief`, a short form of them.
"""

import re
from pathlib import Path


_MARKER = re.compile(r"^<!-- (/?)bench:([\w.-]+) -->$", re.MULTILINE)

# Better than a table from nowhere, and than a gap that nobody can explain.
_MISSING = "*Not measured yet: there is no `benchmarks/results/{}`.*"


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
