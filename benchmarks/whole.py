"""Where it matters: whole programs, in pairs of fresh processes.

    python -m benchmarks.whole [--programs NAMES] [--pairs N] [--json FILE]

A pair runs a program of `benchmarks/programs.py` with `equinox.filter_jit`, and with
`eqx_fastjit` installed in its place, and compares the wall times of the processes,
imports and compilation included. Each program has the same number of pairs, whatever
the first ones show. This takes about 15 minutes; run nothing else meanwhile.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks import parser_of


def _process(name: str, who: str) -> float:
    """Wall seconds of a process."""
    command = [sys.executable, "-m", "benchmarks.whole", "--child", who]
    start = time.perf_counter()
    subprocess.run([*command, "--programs", name], check=True)
    return time.perf_counter() - start


def compare(name: str, pairs: int) -> dict[str, Any]:
    """Wall seconds of a program, in so many pairs, with both libraries.

    Raises `subprocess.CalledProcessError` if a process fails.
    """
    seconds: dict[str, list[float]] = {"eqx": [], "ours": []}
    for i in range(pairs):
        # Neither is always first.
        order = ("eqx", "ours") if i % 2 == 0 else ("ours", "eqx")
        for who in order:
            seconds[who].append(_process(name, who))
    return {"name": name, "seconds": seconds}


def markdown(results: dict[str, Any]) -> str:
    """The table of a results file, for the documentation."""
    from benchmarks.pages import made_by
    from benchmarks.table import markdown_table, ratio_cell

    rows = []
    for entry in results["programs"]:
        seconds = entry["seconds"]
        medians = [statistics.median(seconds[who]) for who in ("eqx", "ours")]
        shown = [f"{median:.2f}" for median in medians]
        rows.append([entry["title"], *shown, ratio_cell(seconds, "eqx")])

    head = ["program", "equinox,\u00a0s", "eqx_fastjit,\u00a0s", "over equinox"]
    pairs = len(results["programs"][0]["seconds"]["eqx"])
    made = f"{pairs} pairs of each program. {made_by(results)}"
    return f"{markdown_table(head, rows)}\n\n{made}"


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = parser_of("benchmarks.whole", __doc__)
    parser.add_argument("--programs", metavar="NAMES", help="separated by commas")
    parser.add_argument("--pairs", type=int, default=10, metavar="N")
    parser.add_argument("--child", choices=("eqx", "ours"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.pairs < 1:
        parser.error(f"--pairs {options.pairs}: expected at least 1")

    if options.child == "ours":
        import eqx_fastjit

        eqx_fastjit.install()

    # Imported late: libraries decorate their functions when they are imported.
    from benchmarks.programs import PROGRAMS

    if options.child:
        PROGRAMS[options.programs]()
        return 0

    from benchmarks.results_file import collect

    # The processes inherit it: each compiles what it runs.
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "0"
    names = list(PROGRAMS)
    if options.programs:
        names = options.programs.split(",")
    for name in names:
        if name not in PROGRAMS:
            parser.error(f"no program {name!r}; there are {', '.join(PROGRAMS)}")

    def measure(name: str) -> dict[str, Any]:
        title = PROGRAMS[name].__doc__
        return {**compare(name, options.pairs), "title": title}

    return collect("benchmarks.whole", names, measure, options.json, markdown)


if __name__ == "__main__":
    sys.exit(main())
