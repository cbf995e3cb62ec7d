"""Tables of the documentation, from the files in benchmarks/results.

The arguments of each are the rest of the part's name (see `generate_docs.py`) and the
folder.
"""

import json
import statistics
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import results_file, table, whole
from benchmarks.results_file import describe_machine


# --- reliability ---------------------------------------------------------------------


def _load(folder: Path, name: str) -> Any:
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def reliability(name: str, folder: Path) -> str:
    """The latest results of a long run."""
    results = _load(folder, name)
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


# A description of each kind of `tests.stress_memory`.
_MEMORY = {
    "calls": "calls",
    "outputs": "large outputs held and freed",
    "lambdas": "lambdas wrapped and called",
    "wrapped": "lambdas wrapped",
    "statics": "statics of one function",
    "classes": "Module classes made and dropped",
}


def _runs(results: Any) -> str:
    """Dates, machines and versions of the runs, each combination once."""

    def run(entry: Any) -> str:
        versions = _versions(entry["versions"])
        return f"{entry['date'][:10]}, {describe_machine(entry['machine'])}, {versions}"

    return f"Run on {'; '.join(dict.fromkeys(map(run, results)))}."


_RELIABILITY: dict[str, Callable[[Any], str]] = {
    "differential": _differential,
    "matrix": _matrix,
    "memory": _memory,
    "peers": _peers,
    "threads": _threads,
}


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _table(header: Any, rows: Any, alignment: Any = None) -> str:
    lines = [header, alignment or ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# --- benchmarks -----------------------------------------------------------------------


def bench(name: str, folder: Path) -> str:
    """The tables of a group of cases; in short, if the name ends with `-brief`."""
    group = name.removesuffix("-brief")
    file = folder / "cpu.json"
    if group == "gpu":
        group, file = "", folder / "gpu.json"
    if not file.exists():
        return ""
    return table.markdown(results_file.load(file), group, brief=group != name)


def zoo(name: str, folder: Path, link: str) -> str:
    """How the zoo compares with each rival: a table, or a sentence for the README."""
    rivals = {
        "jit": "`jax.jit` with the static arguments removed by hand",
        "flat": "`jax.jit` on a flat list of arrays",
        "eqx": "`equinox.filter_jit`",
    }
    file = folder / "cpu.json"
    if not file.exists():
        return ""
    results = results_file.load(file)
    found = table.summary(results)
    if not found:
        return ""
    if name == "summary":
        header = ("ours over", "median", "worst", "worst function")
        rows = [
            (rivals[rival], f"{median:.2f}", f"{worst:.2f}", f"`{case}`")
            for rival, (median, worst, case) in found.items()
        ]
        return _table(header, rows, ["---", "---:", "---:", "---"])
    number = sum(entry["group"] == "zoo" for entry in results["cases"])
    parts = [
        f"{median:.2f} times that of {rivals[rival]} (worst {worst:.2f}, `{case}`)"
        for rival, (median, worst, case) in found.items()
    ]
    text = (
        f"Over [{number} whole functions as people write them]({link}), the median "
        f"dispatch time of a call is {', '.join(parts)}."
    )
    return textwrap.fill(text, 88, break_long_words=False, break_on_hyphens=False)


def programs(folder: Path) -> str:
    """Whole programs in pairs of fresh processes."""
    results = _load(folder, "whole")
    return "" if results is None else whole.markdown(results)


# --- start-up -------------------------------------------------------------------------


def started(name: str, folder: Path) -> str:
    """What exporting saves at start-up."""
    results = _load(folder, name)
    return "" if results is None else startup(results)


def startup(results: Any) -> str:
    """The results of `scripts/startup.py`: each way to start over starting anew."""
    names = ("cached", "portable", "compiled", "calls")
    rows, ratios = [], []
    for entry in results["programs"]:
        anew, *others = map(statistics.median, entry["seconds"].values())
        found = [*(x / anew for x in others), statistics.median(entry["calls"])]
        cells = [f"{x:.2f}" for x in found]
        rows.append([f"`{entry['name']}`", f"{anew:.2f}", *cells])
        ratios.append(found)
    medians = map(statistics.median, zip(*ratios, strict=True))
    told = ", ".join(f"{name} {x:.2f}" for name, x in zip(names, medians, strict=False))
    shown = _table(("function", "anew, s", *names), rows, ["---", *["---:"] * 5])
    return f"{shown}\n\nMedians: {told}. {table.made_by(results)}"
