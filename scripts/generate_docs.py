"""Generate parts of the README and of the documentation.

    python -m scripts.generate_docs

Replaces the text between `<!-- generated:NAME -->` and `<!-- /generated:NAME -->` by
the help of the commands, or by tables of the files in benchmarks/results, and draws the
figures. Without results of a GPU, the part for these says so.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import plot, table, whole
from benchmarks.case import CONTENDERS
from scripts import startup


ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FIGURES = ROOT / "docs" / "assets" / "bench"

_PART = re.compile(
    r"(?P<begin>^<!-- generated:(?P<kind>[a-z]+)-?(?P<name>[\w.-]*) -->$).*?"
    r"(?P<end>^<!-- /generated:(?P=kind)-?(?P=name) -->$)",
    re.MULTILINE | re.DOTALL,
)


def _results(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


# --- help of the commands -------------------------------------------------------------


def _help(name: str, page: Path) -> str:
    """The output of `--help` of each command, under a heading."""
    whole = _help_of()
    commands = re.findall(r"^    (\w+) ", whole, re.MULTILINE)
    parts = [f"## {name}\n\n{_help_of(name)}" for name in commands]
    return "\n\n".join([whole, *parts])


def _help_of(*name: str) -> str:
    command = [sys.executable, "-m", "eqx_fastjit", *name, "--help"]
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    out = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    )
    return f"```text\n{out.stdout.rstrip()}\n```"


# --- benchmarks -----------------------------------------------------------------------

_DESCRIPTIONS = {
    "width": "Time of a call by the width of an MLP",
    "ratios": "eqx_fastjit over each alternative, with a point for each case",
}


def _figure(name: str, page: Path) -> str:
    """A figure of the cases on a CPU."""
    file = FIGURES / f"{name}.svg"
    return f"![{_DESCRIPTIONS[name]}]({file.relative_to(page.parent)})"


def _bench(name: str, page: Path) -> str:
    """The tables of a group of cases, or of all that were timed on a GPU."""
    if name == "gpu":
        if not (RESULTS / "gpu.json").exists():
            return "No results of a GPU are published yet."
        results = _results("gpu")
        return f"{table.markdown(results)}\n\n{table.made_by(results)}"
    results = _results("cpu")
    if name == "legend":
        return f"{table.EXPLANATION}\n\n{table.made_by(results)}"
    return table.markdown(results, name)


def _zoo(name: str, page: Path) -> str:
    """How whole functions compare with each rival."""
    results = _results("cpu")
    blocked = table.summary(results, "zoo", "blocked")
    lines = [
        "| alternative | until the call returns | worst | until the result is ready |",
        "| --- | ---: | --- | ---: |",
    ]
    for rival, (median, worst, case) in table.summary(results, "zoo").items():
        shown = f"{median:.2f} | {worst:.2f} (`{case}`) | {blocked[rival][0]:.2f}"
        lines.append(f"| {CONTENDERS[rival]} | {shown} |")
    return "\n".join(lines)


# --- putting it into the pages --------------------------------------------------------

# By the first word of a part's name: a function of the rest, and of the page.
_MAKERS: dict[str, Callable[[str, Path], str]] = {
    "bench": _bench,
    "figure": _figure,
    "help": _help,
    "programs": lambda name, page: whole.markdown(_results(name)),
    "startup": lambda name, page: startup.markdown(_results(name)),
    "zoo": _zoo,
}


def generated(page: Path) -> str:
    """The text of a page, with its parts made anew."""

    def replace(match: re.Match[str]) -> str:
        body = _MAKERS[match["kind"]](match["name"], page)
        body = f"\n{body}\n\n" if body else ""
        return f"{match['begin']}\n{body}{match['end']}"

    return _PART.sub(replace, page.read_text(encoding="utf-8"))


def main() -> None:
    """Write all pages and figures."""
    plot.save_figures(_results("cpu"), FIGURES, ["svg"])
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        page.write_text(generated(page), encoding="utf-8")


if __name__ == "__main__":
    main()
