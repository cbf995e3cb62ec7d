"""What exporting saves at start-up, for the functions of the zoo.

    python scripts/startup.py --json benchmarks/results/startup.json

Each function has four ways to its first result, each in a process of its own: `anew`,
traced and compiled; `cached`, traced, with a warm persistent cache of JAX; `portable`
and `compiled`, the forms of an exported file, the first with a warm cache too. The
clock runs from the arguments to the result, and so excludes imports. This takes 15
minutes on two cores; run nothing else meanwhile.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock


ROOT = Path(__file__).parent.parent
if __name__ == "__main__":
    # To import `benchmarks`, which is not installed.
    sys.path.append(str(ROOT))


WAYS = ("anew", "cached", "portable", "compiled")
_ROUNDS = 3


class _Called(Exception):
    """The function of a case was called; its arguments are that, and its own."""


def _function_of(name: str) -> tuple[Any, tuple[Any, ...]]:
    """The function of a case, jitted by `eqx_fastjit`, and its arguments."""
    import eqx_fastjit
    from benchmarks import contenders
    from benchmarks.cases import CASES

    def filter_jit(fun: Any) -> Any:
        def call(*args: Any) -> Any:
            raise _Called(eqx_fastjit.filter_jit(fun), args)

        return call

    with mock.patch.dict(contenders.FILTER_JITS, ours=filter_jit):
        try:
            CASES[name].build(("ours",))["ours"]()
        except _Called as called:
            return called.args[0], called.args[1]
    raise AssertionError(f"{name} calls nothing")


def _export(name: str, folder: str) -> dict[str, Any]:
    """Write a file for each form; returns its size, or why it cannot be written."""
    function, args = _function_of(name)
    out: dict[str, Any] = {}
    for form in ("portable", "compiled"):
        path = os.path.join(folder, form)
        try:
            function.export(*args).save(path, **{"portable": False, form: True})
            out[form] = {"bytes": os.path.getsize(path)}
        except ValueError as e:
            out[form] = {"reason": str(e)}
    return out


def _first_result(name: str, way: str, folder: str) -> float:
    """Seconds from the arguments to the first result."""
    import equinox as eqx
    import jax

    import eqx_fastjit

    function, args = _function_of(name)
    jax.block_until_ready(eqx.filter(args, eqx.is_array))
    if way in ("cached", "portable"):
        jax.config.update("jax_compilation_cache_dir", os.path.join(folder, "cache"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    start = time.perf_counter()
    if way in ("portable", "compiled"):
        path, trusted = os.path.join(folder, way), way == "compiled"
        function = eqx_fastjit.load(path, example=args, trusted=trusted)
    jax.block_until_ready(eqx.filter(function(*args), eqx.is_array))
    return time.perf_counter() - start


def _child(name: str, what: str, folder: str) -> Any:
    command = [sys.executable, __file__, "--child", what, folder]
    run = subprocess.run(
        [*command, "--cases", name], capture_output=True, text=True, check=True
    )
    return json.loads(run.stdout.splitlines()[-1])


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Seconds of each way in each round, and the forms of the exported file."""
    with tempfile.TemporaryDirectory() as folder:
        forms = _child(name, "export", folder)
        ways = [way for way in WAYS if "reason" not in forms.get(way, {})]
        for way in {"cached", "portable"} & {*ways}:
            _child(name, way, folder)  # fills the cache
        rows = [[_child(name, way, folder) for way in ways] for _ in range(rounds)]
    seconds = dict(zip(ways, map(list, zip(*rows, strict=True)), strict=True))
    return {"name": name, "forms": forms, "seconds": seconds}


def markdown(results: dict[str, Any]) -> str:
    """The table of a results file, for the documentation."""
    rows: list[list[float | None]] = []
    lines = [
        "| function | anew, s | cached | portable | compiled |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for entry in results["programs"]:
        anew, *others = (entry["seconds"].get(way) for way in WAYS)
        middle = statistics.median(anew)
        row = [statistics.median(x) / middle if x else None for x in others]
        cells = [f"{x:.2f}" if x else "not exported" for x in row]
        lines.append(f"| `{entry['name']}` | {middle:.2f} | {' | '.join(cells)} |")
        rows.append(row)
    columns = [[x for x in column if x] for column in zip(*rows, strict=True)]
    medians = [f"{statistics.median(xs):.2f}" if xs else "" for xs in columns]
    lines.append(f"| **median** | | {' | '.join(medians)} |")
    made = f"Made by `{results['command']}` on {results['date'][:10]}"
    return "\n".join(lines) + f"\n\n{made}, commit `{results['commit'][:12]}`."


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", default="zoo", help="by default, the zoo")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        what, folder = options.child
        exports = what == "export"
        args = (options.cases, folder) if exports else (options.cases, what, folder)
        print(json.dumps((_export if exports else _first_result)(*args)))
        return 0
    from benchmarks.cases import choose, UnknownCase
    from benchmarks.results_file import new_results

    results = {**new_results("python scripts/startup.py"), "programs": []}
    del results["cases"]
    try:
        names = choose(options.cases)
    except UnknownCase as e:
        parser.error(str(e))
    for name in names:
        results["programs"].append(measure(name, options.rounds))
        print(markdown({**results, "programs": results["programs"][-1:]}), flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
