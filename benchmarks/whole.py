"""Where it matters: whole programs, in pairs of fresh processes.

    python -m benchmarks.whole [--programs NAMES] [--pairs N] [--json FILE]

A pair runs a program of `benchmarks/programs.py` with `equinox.filter_jit`, and with
`eqx_fastjit` installed in its place, and compares the wall times of the processes,
imports and compilation included. Each program has the same number of pairs, whatever
the first ones show. This takes about 25 minutes; run nothing else meanwhile.
"""

import argparse
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks import parser_of


def _process(name: str, what: str) -> float:
    """Wall seconds of a process."""
    command = [sys.executable, "-m", "benchmarks.whole", "--child", what]
    start = time.perf_counter()
    run = subprocess.run([*command, "--programs", name], capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if run.returncode:
        last = run.stderr.strip().splitlines()[-1:] or ["no output"]
        raise RuntimeError(f"with {what}: {last[0]}")
    return seconds


def compare(name: str, pairs: int) -> dict[str, Any]:
    """Wall seconds of a program, in so many pairs, with both libraries.

    Raises `RuntimeError` if a process fails.
    """
    seconds: dict[str, list[float]] = {"eqx": [], "ours": []}
    for n in range(1, pairs + 1):
        # Neither is always first.
        for who in sorted(seconds, reverse=n % 2 == 0):
            seconds[who].append(_process(name, who))
    return {"name": name, "seconds": seconds}


def markdown(results: dict[str, Any]) -> str:
    """The table of a results file, for the documentation.

    Of a file in which programs have more or fewer pairs, the first ones of each are
    used, as many as all have.
    """
    from benchmarks.pages import made_by, markdown_table
    from benchmarks.table import ratio_cell
    from benchmarks.timing import interval, ratios

    head = ["program", "equinox,\u00a0s", "eqx_fastjit,\u00a0s", "over equinox"]
    rows = []
    pairs = min(len(x) for e in results["programs"] for x in e["seconds"].values())
    for entry in results["programs"]:
        seconds = {who: x[:pairs] for who, x in entry["seconds"].items()}
        wall = [f"{statistics.median(seconds[who]):.2f}" for who in ("eqx", "ours")]
        ratio = ratio_cell(interval(ratios(seconds, "eqx")))
        shown = f"**{ratio.text}**" if ratio.is_faster else ratio.text
        rows.append([entry["title"], *wall, shown])
    made = f"{pairs} pairs of each program. {made_by(results)}"
    return f"{markdown_table(head, rows)}\n\n{made}"


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = parser_of("benchmarks.whole", __doc__)
    parser.add_argument("--programs", metavar="NAMES", help="separated by commas")
    parser.add_argument("--pairs", type=int, default=12, metavar="N")
    parser.add_argument("--child", choices=("eqx", "ours"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child == "ours":
        import eqx_fastjit

        eqx_fastjit.install()
    # Imported late: libraries decorate their functions when they are imported.
    from benchmarks.programs import PROGRAMS

    if options.child:
        PROGRAMS[options.programs]()
        return 0
    from benchmarks.results_file import collect

    def entry(name: str) -> dict[str, Any]:
        found = compare(name, options.pairs)
        return {**found, "title": PROGRAMS[name].__doc__}

    names = options.programs.split(",") if options.programs else list(PROGRAMS)
    if unknown := [name for name in names if name not in PROGRAMS]:
        parser.error(f"no program {unknown[0]!r}; there are {', '.join(PROGRAMS)}")
    return collect("benchmarks.whole", names, entry, options.json, markdown)


if __name__ == "__main__":
    sys.exit(main())
