"""Generate parts of the README and of the documentation.

    python scripts/generate_docs.py [--check] [NAME ...]

Replaces the text between `<!-- generated:NAME -->` and `<!-- /generated:NAME -->` by
the output of the command that it shows, or by tables of the files in
benchmarks/results. Text that differs only in durations is left as it is, since
durations differ in every run. Figures are drawn again if their results have changed.

NAME may be a pattern, such as 'bench-*'. With `--check` nothing is written, and the
exit code is 1 if anything differs.
"""

import argparse
import fnmatch
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


ROOT = Path(__file__).parent.parent
if __name__ == "__main__":
    # to import `scripts` and `benchmarks`, which are not installed
    sys.path.insert(0, str(ROOT))

from benchmarks import plot, results_file  # noqa: E402
from scripts import tables  # noqa: E402


RESULTS = ROOT / "benchmarks" / "results"
ASSETS = ROOT / "docs" / "assets" / "bench"

_PART = re.compile(
    r"(?P<begin>^<!-- generated:(?P<name>[\w.-]+) -->$)(?P<body>.*?)"
    r"(?P<end>^<!-- /generated:(?P=name) -->$)",
    re.MULTILINE | re.DOTALL,
)
_DURATION = re.compile(r"\b\d+(?:\.\d+)? ?(?:us|ms|s|min)\b(?: \d+ s\b)?")


def pages() -> list[Path]:
    """All files of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def masked(text: str) -> str:
    """The text without durations and padding, for comparison."""
    return " ".join(_DURATION.sub("#", text).split())


# --- help of the commands ------------------------------------------------------------


def _help(*_: Any) -> str:
    """The output of `--help` of each command, under a heading."""
    whole = _help_of()
    commands = re.findall(r"^    (\w+) ", whole, re.MULTILINE)
    parts = [f"## {name}\n\n{_help_of(name)}" for name in commands]
    return "\n\n".join([whole, *parts])


def _help_of(*name: str) -> str:
    command = [sys.executable, "-m", "eqx_fastjit.cli", *name, "--help"]
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    out = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    )
    return f"```text\n{out.stdout.rstrip()}\n```"


# --- figures -------------------------------------------------------------------------

# For each figure, a description.
_FIGURES = {
    "width": "Cost of a call against the width of an MLP",
    "ratios": "eqx_fastjit relative to each rival, with a point for each case",
}


def _figure(name: str, page: Path) -> str:
    """The Markdown of an image in two colour schemes; empty if there are no results."""
    description = _FIGURES[name]
    folder = ASSETS.relative_to(ROOT)
    if page.name == "README.md":
        dark, light = (f"{folder}/{name}-{scheme}.svg" for scheme in ("dark", "light"))
        return (
            f'<picture>\n  <source media="(prefers-color-scheme: dark)" '
            f'srcset="{dark}">\n  <img alt="{description}" src="{light}">\n</picture>'
        )
    folder = ASSETS.relative_to(page.parent)
    return "\n".join(
        f"![{description}]({folder}/{name}-{scheme}.svg#only-{scheme})"
        for scheme in ("light", "dark")
    )


_IDENTIFIER = re.compile(rb"<dc:identifier>(\w+)</dc:identifier>")


def stale_figures(patterns: list[str]) -> dict[Path, bytes]:
    """The figures that do not match the results.

    **Arguments:**

    - `patterns`: patterns of the names of parts; all if empty.

    **Returns:** the new content of each file, which is not written. The bytes are not
    compared, as they depend on the version of matplotlib.
    """
    if not (RESULTS / "cpu.json").exists():
        return {}
    file = RESULTS / "cpu.json"
    if not file.exists():
        return {}
    results = results_file.load(file)
    chosen = [name for name in _FIGURES if _is_chosen(f"figure-{name}", patterns)]
    paths = {
        scheme: [ASSETS / f"{name}-{scheme}.svg" for name in chosen]
        for scheme in ("light", "dark")
    }
    wanted = [plot.digest(results).encode()]
    stale = {
        path
        for path in (*paths["light"], *paths["dark"])
        if not path.exists() or _IDENTIFIER.findall(path.read_bytes()) != wanted
    }
    if not stale:
        return {}
    drawn = {
        ASSETS / f"{name}-{scheme}.svg": content
        for scheme in paths
        for name, content in plot.render(results, "svg", scheme == "dark").items()
    }
    return {path: drawn[path] for path in stale}


# --- tables ---------------------------------------------------------------------------


def _zoo(name: str, page: Path) -> str:
    folder = "docs/" if page.name == "README.md" else ""
    return tables.zoo(name, RESULTS, f"{folder}performance.md#whole-functions")


# --- putting it into the pages -------------------------------------------------------

# By the prefix of a part's name: a function of the rest of the name and the page.
_MAKERS: dict[str, Callable[[str, Path], str]] = {
    "bench": lambda name, page: tables.bench(name, RESULTS),
    "figure": _figure,
    "help": _help,
    "reliability": lambda name, page: tables.reliability(name, RESULTS),
    "programs": lambda _, page: tables.programs(RESULTS),
    "startup": lambda name, page: tables.started(name, RESULTS),
    "zoo": _zoo,
}


def _is_chosen(name: str, patterns: list[str]) -> bool:
    return not patterns or any(fnmatch.fnmatch(name, p) for p in patterns)


def generated(page: Path, patterns: list[str]) -> tuple[str, list[str]]:
    """Regenerate the parts of a page.

    **Arguments:**

    - `page`: a Markdown file.
    - `patterns`: patterns of the names of parts; all if empty.

    **Returns:** the text, and the names of the parts that differ.
    """
    differing = []

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if not _is_chosen(name, patterns):
            return match[0]
        kind, _, rest = name.partition("-")
        body = _MAKERS[kind](rest, page)
        if masked(body) == masked(match["body"]):
            return match[0]
        differing.append(name)
        body = f"\n\n{body}\n\n" if body else "\n"
        return f"{match['begin']}{body}{match['end']}"

    return _PART.sub(replace, page.read_text(encoding="utf-8")), differing


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="list outdated parts; write nothing"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts, as patterns")
    options = parser.parse_args(argv)
    new = stale_figures(options.names)
    for path in new:
        print(path.relative_to(ROOT))
    for page in pages():
        text, differing = generated(page, options.names)
        if differing:
            print(f"{page.relative_to(ROOT)}: {', '.join(differing)}")
            new[page] = text.encode()
    if options.check:
        return int(bool(new))
    for path, content in new.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
