"""Generate parts of the README and of the documentation.

    python scripts/generate_docs.py [--check] [NAME ...]

The text between `<!-- generated:NAME -->` and `<!-- /generated:NAME -->` is replaced,
by running the command that it shows, or from the files in benchmarks/results. It is
left as it is if only durations differ, because these are from one run. All tables
between `bench:` markers, which `benchmarks/render.py` makes, have the name 'tables'.
Figures are drawn again if their results have changed.

NAME may be a pattern, such as 'finding-*'. With `--check` nothing is written, and the
exit code is 1 if something differs.
"""

import argparse
import fnmatch
import json
import math
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eqx_fastjit.bench._results import describe_machine


ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
ASSETS = ROOT / "docs" / "assets" / "bench"

_PART = re.compile(
    r"(?P<begin>^<!-- generated:(?P<name>[\w.-]+) -->$)(?P<body>.*?)"
    r"(?P<end>^<!-- /generated:(?P=name) -->$)",
    re.MULTILINE | re.DOTALL,
)
_DURATION = re.compile(r"\b\d+(?:\.\d+)? ?(?:us|ms|s|min)\b(?: \d+ s\b)?")

# Options of the doctor that a planted fault needs.
_OPTIONS = {"numerics": ["--numerics"], "slow-first-call": ["--slow", "0.5"]}


def pages() -> list[Path]:
    """All files of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def masked(text: str) -> str:
    """The text, for comparison: without durations and the width of columns."""
    return " ".join(_DURATION.sub("#", text).split())


# --- what doctor says ----------------------------------------------------------------


def _doctor(script: str, options: list[str]) -> str:
    """The report on a script, as the command prints it."""
    command = [sys.executable, "-m", "eqx_fastjit.cli", "doctor", *options, script]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if out.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{out.stderr}")
    return out.stderr[out.stderr.index("eqx-fastjit doctor:") :].rstrip()


def planted(kind: str) -> tuple[str, str]:
    """The scripts with and without a fault of this kind, relative to the root."""
    name = kind.replace("-", "_")
    return f"tests/planted/{name}.py", f"tests/planted/{name}_clean.py"


def shown_source(script: str) -> str:
    """A script as the documentation shows it."""
    return f'```py title="{script}"\n{(ROOT / script).read_text().rstrip()}\n```'


def _finding(kind: str, _: Path) -> str:
    """A script with a fault, the doctor's report on it, and a script without one."""
    faulty, clean = planted(kind)
    if not (ROOT / faulty).exists():
        return ""
    options = _OPTIONS.get(kind, [])
    report = _doctor(faulty, options)
    # Only the findings of this kind, each from its line to the next empty one.
    found = re.findall(rf"^{kind} \(.*?(?=\n\n|\Z)", report, re.MULTILINE | re.DOTALL)
    if not found:
        raise RuntimeError(f"doctor finds no {kind} in {faulty}:\n{report}")
    command = " ".join(["eqx-fastjit doctor", *options, faulty])
    said = "\n\n".join(found)
    return (
        f"{shown_source(faulty)}\n\n`{command}` says:\n\n```text\n{said}\n```\n\n"
        f"This script has no finding:\n\n{shown_source(clean)}"
    )


def _report(name: str, _: Path) -> str:
    """The whole report on an example."""
    return f"```text\n{_doctor(f'examples/{name}.py', [])}\n```"


# --- help of the commands ------------------------------------------------------------


def _help(*_: Any) -> str:
    """What each command prints with `--help`, under a heading."""
    from eqx_fastjit.cli import _COMMANDS

    parts = [_help_of()]
    parts += [f"## {name}\n\n{_help_of(name)}" for name in _COMMANDS]
    return "\n\n".join(parts)


def _help_of(*name: str) -> str:
    command = [sys.executable, "-m", "eqx_fastjit.cli", *name, "--help"]
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    out = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    )
    return f"```text\n{out.stdout.rstrip()}\n```"


# --- figures -------------------------------------------------------------------------

# The results file that each is drawn from, and what it shows.
_FIGURES = {
    "width": (
        "table",
        "Cost of a call against the width of an MLP",
    ),
    "nodes": ("mlp", "Cost of a call against the number of pytree nodes"),
    "ratios": ("table", "Ours relative to each rival, with a bar for each case"),
}


def _figure(name: str, page: Path) -> str:
    """An image in two colour schemes; nothing while there are no results."""
    results, description = _FIGURES[name]
    if not (RESULTS / f"{results}.json").exists():
        return ""
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
    """The files of figures that do not show what the results give.

    **Arguments:**

    - `patterns`: of the names of parts; all if empty.

    **Returns:** what each should have in it. Nothing is written. Bytes are not
    compared: they are of one version of matplotlib.
    """
    out = {}
    for name, (results, _) in _FIGURES.items():
        source = RESULTS / f"{results}.json"
        if not _is_chosen(f"figure-{name}", patterns) or not source.exists():
            continue
        for scheme in ("light", "dark"):
            path = ASSETS / f"{name}-{scheme}.svg"
            svg = _draw(source, name, scheme)
            known = path.read_bytes() if path.exists() else b""
            if _IDENTIFIER.findall(known) != _IDENTIFIER.findall(svg):
                out[path] = svg
    return out


def _draw(results: Path, name: str, scheme: str) -> bytes:
    from eqx_fastjit.bench import load
    from eqx_fastjit.bench._plots import render

    return render(load(results), "svg", dark=scheme == "dark")[name]


# --- results of reliability ----------------------------------------------------------


def _load(name: str) -> Any:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _reliability(name: str, _: Path) -> str:
    """The last results of a long run."""
    results = _load(name)
    if results is None:
        return "*Not measured yet.*"
    return _RELIABILITY[name](results)


def _differential(results: Any) -> str:
    counts = results["counts"]
    versions = _versions(results["versions"])
    last_seed = results["first_seed"] + results["seeds"] - 1
    rows = [
        ("calls compared", f"{results['calls']:,}"),
        ("in sequences", f"{results['sequences']:,}"),
        ("traces counted", f"{counts.get('traces', 0):,}"),
        ("calls that should raise, and did", f"{counts.get('errors', 0):,}"),
        (
            "results that Equinox took from an equal static (a new trace agreed)",
            f"{counts.get('stale traces of Equinox', 0):,}",
        ),
        ("differences", f"{len(results['failures']):,}"),
    ]
    table = _table(("last long run", ""), rows)
    return (
        f"{table}\n\nMade by `{results['command']}` (seeds to {last_seed}) on "
        f"{results['date'][:10]}, commit `{results['commit']}`; "
        f"{describe_machine(results['machine'])}; {versions}."
    )


def _matrix(results: Any) -> str:
    names = ("python", "jax", "equinox", "engine", "passed", "failed", "skipped")
    rows = [[str(entry[name]) for name in names] for entry in results]
    dates = sorted(entry["date"][:10] for entry in results)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    tests = " or ".join(dict.fromkeys(f"`{entry['tests']}`" for entry in results))
    return f"{_table(names, rows)}\n\nRun on {when}, on both engines: {tests}."


def _peers(results: Any) -> str:
    names, ways = ("passed", "failed", "skipped"), ("without", "with")
    rows = []
    for entry in results:
        counts = [
            ", ".join(f"{entry[way].get(n, 0)} {n}" for n in names) for way in ways
        ]
        rows.append([f"`{entry['command']}`", *counts, str(len(entry["different"]))])
    header = ("suite", "with Equinox's", "with ours", "different outcomes")
    return f"{_table(header, rows)}\n\n{_runs(results)}"


def _threads(results: Any) -> str:
    rows = [
        [
            entry["engine"],
            str(entry["threads"]),
            f"{entry['seconds']:.0f} s",
            f"{sum(entry['done'].values()):,}",
            str(entry["failures"]),
        ]
        for entry in results
    ]
    header = ("engine", "threads", "for", "actions", "failures")
    return f"{_table(header, rows)}\n\n{_runs(results)}"


def _memory(results: Any) -> str:
    def row(entry: Any) -> list[str]:
        whose = "" if entry["jit"] == "ours" else ", with Equinox's"
        return [
            f"{entry['n']:,} {_MEMORY[entry['kind']]}{whose}",
            f"{entry['python_bytes_each'] * (entry['n'] // 2):,.0f}",
            f"{entry['resident_growth'] / 2**20:.1f}",
        ]

    kinds = list(_MEMORY)
    ordered = sorted(
        results, key=lambda e: (kinds.index(e["kind"]), e["jit"] != "ours")
    )
    rows = [row(entry) for entry in ordered]
    header = ("run", "growth of Python's memory (bytes)", "of resident memory (MiB)")
    return (
        f"{_table(header, rows)}\n\nThis is the growth over the second half of each "
        f"run, because the first half fills caches and pools. {_runs(results)}"
    )


# What a kind of `tests.stress_memory` does.
_MEMORY = {
    "calls": "calls",
    "outputs": "large outputs held and freed",
    "lambdas": "lambdas wrapped and called",
    "wrapped": "lambdas wrapped",
    "statics": "statics of one function",
    "classes": "Module classes made and dropped",
}


def _runs(results: Any) -> str:
    """When and on what, each combination once."""

    def run(entry: Any) -> str:
        versions = _versions(entry["versions"])
        return f"{entry['date'][:10]}, {describe_machine(entry['machine'])}, {versions}"

    return f"Run on {'; '.join(dict.fromkeys(map(run, results)))}."


def _share_with_interval(area: Any) -> str:
    """Wilson's: a sample of forty says little more than "about nine in ten"."""
    share, n = area["share"], area["mutants"] - area["equivalent"]
    if share is None:
        return "-"
    z = 1.96
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    return f"{share:.0%} ({middle - half:.0%} to {middle + half:.0%})"


def _mutation(results: Any) -> str:
    areas = results["areas"]
    rows = [
        [
            area["area"],
            *(f"{area[name]:,}" for name in ("places", "mutants", "killed")),
            str(area["equivalent"]),
            _share_with_interval(area),
            f"{area['goal']:.0%}",
        ]
        for area in areas
    ]
    header = (
        *("area", "places", "tried", "noticed", "equivalent"),
        *("share (95% interval)", "goal"),
    )
    reasons = [
        f"- `{x['file']}`: `{_one_line(x['before'])}` as `{_one_line(x['after'])}`. "
        f"{x['equivalent']}"
        for area in areas
        for x in area["survived"]
        if "equivalent" in x
    ]
    said = "\n\nThese are equivalent:\n\n" + "\n".join(reasons)
    return (
        f"{_table(header, rows)}{said if reasons else ''}\n\nMade by "
        f"`{results['command']}` on {results['date'][:10]}, commit "
        f"`{results['commit']}`; {describe_machine(results['machine'])}; "
        f"{_versions(results['versions'])}."
    )


def _one_line(source: str) -> str:
    return " ".join(source.split())


_RELIABILITY: dict[str, Callable[[Any], str]] = {
    "differential": _differential,
    "matrix": _matrix,
    "memory": _memory,
    "mutation": _mutation,
    "peers": _peers,
    "threads": _threads,
}


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _table(header: Any, rows: Any) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# --- promised figures -----------------------------------------------------------------


def _targets(name: str, _: Path) -> str:
    """The engine's targets, and the figures that it reaches."""
    from benchmarks.targets import UNITS

    results = _load(name)
    if results is None:
        return "*Not measured yet.*"
    rows = [
        [
            row["what"].replace("_", " ") + _in_unit(UNITS.get(row["what"], "")),
            f"{row['at_most']:g}",
            # Three digits, so that 1.052 does not look like a limit of 1.05.
            f"{row['value']:.3f}",
            f"{min(row['runs']):.2f} to {max(row['runs']):.2f}",
            "yes" if row["value"] <= row["at_most"] else "**no**",
        ]
        for row in results["rows"]
    ]
    header = ("", "limit", "measured", "min to max", "met")
    runs = {(row["command"], row["commit"]): None for row in results["rows"]}
    made = "; ".join(f"`{command}` at commit `{commit}`" for command, commit in runs)
    machine = describe_machine(results["machine"])
    return (
        f"{_table(header, rows)}\n\nMade by {made}. {machine}; "
        f"{_versions(results['versions'])}."
    )


def _in_unit(unit: str) -> str:
    return f", {unit}" if unit else ""


# --- the zoo --------------------------------------------------------------------------


def _zoo(name: str, page: Path) -> str:
    """The median and the worst case of the zoo, or what its programs are."""
    from benchmarks import render
    from eqx_fastjit.bench import case_info, case_names, load

    if name == "programs":
        cases = [case_info(case) for case in case_names()]
        rows = [(f"`{c.name}`", c.title) for c in cases if c.group == "zoo"]
        return _table(("program", "what it is"), rows)
    path = RESULTS / "zoo.json"
    if not path.exists():
        return ""
    results = load(path)
    if name == "summary":
        return render.summary_table(results)
    folder = "docs/" if page.name == "README.md" else ""
    return render.summary_line(results, f"{folder}performance.md#the-zoo")


# --- whole programs -------------------------------------------------------------------


def _gain(name: str, _: Path) -> str:
    """How much faster each program is, even if it is not."""
    results = _load("gain")
    if results is None:
        return "*Not measured yet.*"
    rows = [_gain_row(report) for report in results["programs"]]
    # Those that gained most come first.
    rows = [row for _, row in sorted(rows, key=lambda x: x[0])]
    header = (
        *("program", "equinox", "ours", "ours/eqx", "most called", "calls"),
        *("equinox", "ours", "floor", "device", "overhead", "saved"),
    )
    alignment = ["---", "---:", "---:", "---:", "---", *["---:"] * 7]
    lines = [header, alignment, *rows]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    commit = results.get("commit", "unknown")
    return (
        f"{table}\n\nMade by `{results['command']}` on {results['date'][:10]}, commit "
        f"`{commit[:12]}`; {describe_machine(results['machine'])}; "
        f"{_versions(results['versions'])}."
    )


def _gain_row(report: Any) -> tuple[float, list[str]]:
    """A line of the table, after what it is sorted by."""
    from benchmarks.render import unbroken
    from eqx_fastjit._units import show_seconds

    walls = [statistics.median(report["wall"][who]) for who in ("equinox", "ours")]
    ratio = report["wall"]["ratio"]
    shown = "one pair"
    if ratio is not None:
        interval = unbroken(f"({ratio['low']:.2f} to {ratio['high']:.2f})")
        shown = f"{ratio['ratio']:.2f} {interval}"
        if report["verdict"] in ("faster", "slower"):
            shown = f"**{shown}**"
        elif report["verdict"] == "unknown":
            shown = f"~{shown}"
    timed = [f for f in report["functions"] if f["seconds"] is not None]
    most = max(timed or report["functions"], key=lambda f: f["calls"])
    costs = most["seconds"]
    names = ("equinox", "ours", "floor", "device")
    cells = [unbroken(show_seconds(costs[n])) if costs else "-" for n in names]
    saved = sum(f["saved"] for f in report["functions"])
    share = sum(f["overhead_share"] for f in report["functions"])
    name = most["name"].rpartition(".")[2]
    row = [
        f"`{report['program']}`",
        *(unbroken(show_seconds(wall)) for wall in walls),
        shown,
        *(f"`{name}`", f"{most['calls']:,}", *cells),
        *(f"{share:.1%}", unbroken(show_seconds(saved))),
    ]
    return (walls[1] / walls[0] if ratio is None else ratio["ratio"]), row


# --- start-up -------------------------------------------------------------------------


def _startup(name: str, _: Path) -> str:
    """What exporting saves, even if it is nothing."""
    from benchmarks.render import startup_tables

    results = _load(name)
    if results is None:
        return "*Not measured yet.*"
    return startup_tables(results)


# --- putting it into the pages -------------------------------------------------------

# By what the name of a part begins with: given the rest, and the page.
_MAKERS: dict[str, Callable[[str, Path], str]] = {
    "figure": _figure,
    "finding": _finding,
    "gain": _gain,
    "help": _help,
    "reliability": _reliability,
    "report": _report,
    "results": _targets,
    "startup": _startup,
    "zoo": _zoo,
}


def _is_chosen(name: str, patterns: list[str]) -> bool:
    return not patterns or any(fnmatch.fnmatch(name, p) for p in patterns)


def generated(page: Path, patterns: list[str]) -> tuple[str, list[str]]:
    """A page with its parts generated again.

    **Arguments:**

    - `page`: a file of Markdown.
    - `patterns`: of the names of parts; all if empty.

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

    text = _PART.sub(replace, page.read_text(encoding="utf-8"))
    if not _is_chosen("tables", patterns):
        return text, differing
    from benchmarks.render import rendered

    with_tables = rendered(text, RESULTS)
    return with_tables, differing + ["tables"] * (with_tables != text)


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only tell what differs")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of parts; a pattern")
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
    sys.path.insert(0, str(ROOT))  # for `benchmarks`, which is not installed
    sys.exit(main())
