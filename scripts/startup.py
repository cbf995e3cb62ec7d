"""What exporting saves at start-up, for the functions of the zoo.

    python -m scripts.startup --json benchmarks/results/startup.json
    python -m scripts.startup --table benchmarks/results/startup.json

Each function has four ways to its first result, each in a process of its own: `anew`,
traced and compiled; `cached`, traced, with a warm persistent cache of JAX; `portable`
and `compiled`, the forms of an exported file, the first with a warm cache too. The
clock runs from the arguments to the result, and so excludes imports. `calls` are later
calls of the compiled form, over those of `filter_jit`. Files are exported under
`EQX_ON_ERROR=nan`, as functions with checks must be. This takes 10 minutes on two
cores; run nothing else meanwhile. The second command prints the table of the docs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import prefer_installed_package


FORMS = ("portable", "compiled")
WAYS = ("anew", "cached", *FORMS)
_CALL_ROUNDS, _CALL_SECONDS = 25, 0.02  # of later calls


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


def _export(name: str, folder: str, _: str) -> dict[str, Any]:
    """Write a file for each form; returns its size, or why it cannot be written."""
    function, args = _function_of(name)
    out: dict[str, Any] = {}
    for form in FORMS:
        path = os.path.join(folder, form)
        try:
            function.export(*args).save(path, compiled=form == "compiled")
            out[form] = {"bytes": os.path.getsize(path)}
        except ValueError as e:
            out[form] = {"reason": str(e)}
    return out


def _load(form: str, folder: str, args: Any) -> Any:
    import eqx_fastjit

    path, trusted = os.path.join(folder, form), form == "compiled"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # native code that is not used
        return eqx_fastjit.load(path, example=args, trusted=trusted)


def _first_result(name: str, folder: str, way: str) -> float:
    """Seconds from the arguments to the first result."""
    import equinox as eqx
    import jax

    function, args = _function_of(name)
    jax.block_until_ready(eqx.filter(args, eqx.is_array))
    if way in ("cached", "portable"):
        jax.config.update("jax_compilation_cache_dir", os.path.join(folder, "cache"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    start = time.perf_counter()
    if way in FORMS:
        function = _load(way, folder, args)
    jax.block_until_ready(eqx.filter(function(*args), eqx.is_array))
    return time.perf_counter() - start


def _later_calls(name: str, folder: str, _: str) -> list[float]:
    """Time of a call of the loaded function over one of `filter_jit`, in each round."""
    import equinox as eqx
    import jax

    function, args = _function_of(name)

    def seconds(f: Any, n: int) -> float:
        start = time.perf_counter()
        for _ in range(n):
            out = f(*args)
        jax.block_until_ready(eqx.filter(out, eqx.is_array))
        return (time.perf_counter() - start) / n

    loaded = _load("compiled", folder, args)
    for f in (loaded, function):
        seconds(f, 1)  # the first call
    n = max(1, int(_CALL_SECONDS / seconds(function, 3)))
    return [seconds(loaded, n) / seconds(function, n) for _ in range(_CALL_ROUNDS)]


def _child(name: str, what: str, folder: str, **environment: str) -> Any:
    command = [sys.executable, "-m", "scripts.startup", "--child", what, folder]
    env = {**os.environ, **environment}
    out = subprocess.check_output([*command, "--cases", name], env=env, text=True)
    return json.loads(out.splitlines()[-1])


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Seconds of each way in each round, later calls, and the forms of the file."""
    with tempfile.TemporaryDirectory() as folder:
        forms = _child(name, "export", folder, EQX_ON_ERROR="nan")
        ways = [way for way in WAYS if "reason" not in forms.get(way, {})]
        for way in {"cached", "portable"} & {*ways}:
            _child(name, way, folder)  # fills the cache
        rows = [[_child(name, way, folder) for way in ways] for _ in range(rounds)]
        calls = _child(name, "calls", folder) if "compiled" in ways else []
    seconds = dict(zip(ways, map(list, zip(*rows, strict=True)), strict=True))
    return {"name": name, "forms": forms, "seconds": seconds, "calls": calls}


def markdown(results: dict[str, Any]) -> str:
    """The table of a results file, for the documentation."""
    rows: list[list[float | None]] = []
    lines = [
        "| function | anew, s | cached | portable | compiled | calls |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for entry in results["programs"]:
        anew, *others = (entry["seconds"].get(way) for way in WAYS)
        middle = statistics.median(anew)
        row = [statistics.median(x) / middle if x else None for x in others]
        calls = entry.get("calls")
        row.append(statistics.median(calls) if calls else None)
        cells = [f"{x:.2f}" if x else "not exported" for x in row]
        lines.append(f"| `{entry['name']}` | {middle:.2f} | {' | '.join(cells)} |")
        rows.append(row)
    found = [[x for x in column if x] for column in zip(*rows, strict=True)]
    medians = [f"{statistics.median(x):.2f}" if x else "" for x in found]
    lines.append(f"| **median** | | {' | '.join(medians)} |")
    made = f"Made by `{results['command']}` on {results['date'][:10]}"
    return "\n".join(lines) + f"\n\n{made}, commit `{results['commit'][:12]}`."


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.startup",
        description=(__doc__ or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", default="zoo", help="by default, the zoo")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--table", type=Path, metavar="FILE", help="show such a file")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.table:
        print(markdown(json.loads(options.table.read_text())))
        return 0
    if options.child:
        what, folder = options.child
        work = {"export": _export, "calls": _later_calls}.get(what, _first_result)
        print(json.dumps(work(options.cases, folder, what)))
        return 0
    from benchmarks.cases import choose, UnknownCase
    from benchmarks.results_file import new_results

    try:
        names = choose(options.cases)
    except UnknownCase as e:
        parser.error(str(e))
    results = {
        **new_results("scripts.startup"),
        "programs": [],
    }
    del results["cases"]
    for name in names:
        results["programs"].append(measure(name, options.rounds))
        print(markdown({**results, "programs": results["programs"][-1:]}), flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    prefer_installed_package()
    sys.exit(main())
