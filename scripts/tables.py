"""Tables of the documentation, from the files in benchmarks/results.

The arguments of each are the rest of the part's name (see `generate_docs.py`) and the
folder.
"""

import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eqx_fastjit.bench._results import describe_machine


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


def _share_with_interval(area: Any) -> str:
    """The share with Wilson's interval, because samples may be as small as forty."""
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


def _table(header: Any, rows: Any, alignment: Any = None) -> str:
    lines = [header, alignment or ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# --- targets --------------------------------------------------------------------------


def targets(name: str, folder: Path) -> str:
    """The engine's targets, and the measured figures."""
    from benchmarks.targets import UNITS

    results = _load(folder, name)
    if results is None:
        return "*Not measured yet.*"
    rows = [
        [
            row["what"].replace("_", " ") + _in_unit(UNITS.get(row["what"], "")),
            f"{row['at_most']:g}",
            # With three digits, 1.052 does not look equal to a limit of 1.05.
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


def zoo(name: str, folder: Path, link: str) -> str:
    """The median and worst case of the zoo, or the list of its programs."""
    from eqx_fastjit.bench import case_info, case_names, load

    from benchmarks import render

    if name == "programs":
        cases = [case_info(case) for case in case_names()]
        rows = [(f"`{c.name}`", c.title) for c in cases if c.group == "zoo"]
        return _table(("program", "what it is"), rows)
    path = folder / "zoo.json"
    if not path.exists():
        return ""
    results = load(path)
    if name == "summary":
        return render.summary_table(results)
    return render.summary_line(results, link)


# --- whole programs -------------------------------------------------------------------


def gain(folder: Path) -> str:
    """The gain of each program, including those that gain nothing."""
    results = _load(folder, "gain")
    if results is None:
        return "*Not measured yet.*"
    rows = [_gain_row(report) for report in results["programs"]]
    # Sorted by gain, largest first.
    rows = [row for _, row in sorted(rows, key=lambda x: x[0])]
    header = (
        *("program", "equinox", "ours", "ours/eqx", "most called", "calls"),
        *("equinox", "ours", "floor", "device", "overhead", "saved"),
    )
    alignment = ["---", "---:", "---:", "---:", "---", *["---:"] * 7]
    table = _table(header, rows, alignment)
    commit = results.get("commit", "unknown")
    return (
        f"{table}\n\nMade by `{results['command']}` on {results['date'][:10]}, commit "
        f"`{commit[:12]}`; {describe_machine(results['machine'])}; "
        f"{_versions(results['versions'])}."
    )


def _gain_row(report: Any) -> tuple[float, list[str]]:
    """A row of the table, after the value by which rows are sorted."""
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


def startup(name: str, folder: Path) -> str:
    """What exporting saves, including programs for which it saves nothing."""
    from benchmarks.render import startup_tables

    results = _load(folder, name)
    if results is None:
        return "*Not measured yet.*"
    return startup_tables(results)
