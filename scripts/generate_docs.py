"""Generate parts of the README and of the documentation.

    python -m scripts.generate_docs [--doctor]

Replaces the text between `<!-- generated:NAME -->` and `<!-- /generated:NAME -->` by
the help of the commands, the doctor's report on an example, or tables of the files in
benchmarks/results, and draws the figures. With `--doctor`, the example is run again:
its report is kept in benchmarks/results, and the beginning of its page as a picture.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import instructions, pages, plot, results_file, table, upstream, whole
from benchmarks.cases import GROUPS
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


# --- what the commands print ----------------------------------------------------------


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    """A command of `eqx-fastjit`, as on a terminal of 80 columns."""
    return subprocess.run(
        [sys.executable, "-m", "eqx_fastjit", *words],
        env={"PATH": "", "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )


def _help(_: str) -> str:
    """The output of `--help` of each command, under a heading."""

    def shown(*words: str) -> str:
        return f"```text\n{_run(*words, '--help').stdout.rstrip()}\n```"

    commands = re.findall(r"^    (\w+) ", shown(), re.MULTILINE)
    sections = [f"## {command}\n\n{shown(command)}" for command in commands]
    return "\n\n".join([shown(), *sections])


def _doctor(name: str) -> str:
    """The doctor's report on the example; by the name `first`, its first two rows."""
    results = _results("doctor")
    lines: list[str] = results["report"]
    if name != "first":
        made_by = pages.made_by(results)
        return "\n".join(["```text", *lines, "```", "", made_by])

    # Where each row begins, with its number. Before the first there is the title, which
    # may have several lines.
    rows = [i for i, line in enumerate(lines) if re.match(r"\d+ ", line)]
    title = " ".join(lines[: rows[0]])
    command, seconds = title.replace(":", "", 1).split(" ran ", 1)
    head = textwrap.wrap(f"ran {seconds}", 80)
    shown = [f"$ {command}", *head, *lines[rows[0] : rows[2]], "..."]
    return "\n".join(["```text", *shown, "```"])


# --- benchmarks -----------------------------------------------------------------------


def _by_device() -> dict[str, Any]:
    return {device: _results(device) for device in ("cpu", "gpu")}


def _bench(name: str) -> str:
    """The table of a group of cases, on each device, or of what only a CPU has timed.

    By the name `legend`, how to read it, and where the results come from.
    """
    if name == "legend":
        by_device = _by_device().values()
        return "\n\n".join([table.EXPLANATION, *map(pages.made_by, by_device)])
    if name in ("first", "strategies", "eager"):
        return pages.times(_results("cpu"), name)
    return pages.side_by_side(_by_device(), name)


def _loops(_: str) -> str:
    """The table of whole loops, on each device that has timed them."""
    timed = [
        results
        for results in _by_device().values()
        if any("iteration" in entry["times"] for entry in results["cases"])
    ]
    return "\n\n".join(map(pages.loops, timed))


# --- putting it into the pages --------------------------------------------------------

# By the first word of a part's name: a function of the rest, which may be empty.
_MAKERS: dict[str, Callable[[str], str]] = {
    "bench": _bench,
    "doctor": _doctor,
    "help": _help,
    "all": lambda name: pages.everything(_results(name), GROUPS),
    "instructions": lambda _: instructions.markdown(_results("instructions")),
    "loops": _loops,
    "programs": lambda name: whole.markdown(_results(name)),
    "upstream": lambda _: upstream.markdown(_results("upstream")),
    "startup": lambda name: startup.markdown(_results(name)),
    "headline": lambda _: pages.headline(_by_device()),
    "summary": lambda _: pages.whole_functions(_by_device()),
}


def generated(page: Path) -> str:
    """The text of a page, with its parts as they are now."""

    def replace(match: re.Match[str]) -> str:
        body = _MAKERS[match["kind"]](match["name"])
        return f"{match['begin']}\n\n{body}\n\n{match['end']}"

    return _PART.sub(replace, page.read_text(encoding="utf-8"))


def _record_doctor() -> None:
    """Keep the doctor's report on the example, and how its page begins."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = f"{folder}/doctor.html"
        report = _run("doctor", "--html", file, "examples/faulty_train.py").stderr

        results = results_file.new_results("scripts.generate_docs")
        del results["cases"]
        lines = [line.rstrip() for line in report.strip().splitlines()]
        text = json.dumps({**results, "report": lines}, indent=1)
        (RESULTS / "doctor.json").write_text(f"{text}\n", encoding="utf-8")

        chromium = shutil.which("chromium")
        with playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        ) as browser:
            for scheme in ("light", "dark"):
                size = {"width": 900, "height": 560}
                page = browser.new_page(viewport=size, color_scheme=scheme)
                page.goto(f"file://{file}")
                page.screenshot(path=f"{FIGURES.parent}/doctor-{scheme}.png")


def main() -> None:
    """Write all pages and figures."""
    if "--doctor" in sys.argv:
        _record_doctor()
    plot.save_figures(_by_device(), FIGURES)
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        page.write_text(generated(page), encoding="utf-8")


if __name__ == "__main__":
    main()
