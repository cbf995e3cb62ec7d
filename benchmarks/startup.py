"""Measures what exporting saves at start-up, for programs of the zoo.

    python -m benchmarks.startup --json benchmarks/results/startup.json

Each program has four ways to its first result, each in a process of its own:

- `anew`: traced and compiled;
- `cached`: traced, with a warm persistent cache of JAX in place of the compiler;
- `portable`: the portable form of an exported file, with a warm persistent cache;
- `compiled`: the compiled form.

Each round runs every way once, in a different order, and ratios are taken within
rounds. Each process is a fork of one that has imported JAX, Equinox and the program
without using them. That import is the same for all four, and is timed separately. The
clock runs from the arguments, through `load` where there is one, to the first result.
Finally, later calls of the loaded function and of `filter_jit` are timed in turn in one
process.

This takes about 12 minutes on two cores. Run nothing else meanwhile.
"""

import argparse
import compileall
import functools
import gc
import importlib
import json
import multiprocessing
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import eqx_fastjit
from benchmarks._suite import load_bench


WAYS = ("anew", "cached", "portable", "compiled")
# Rounds of first calls, and of the much shorter later calls.
_ROUNDS, _CALL_ROUNDS = 3, 25
_QUICK_ROUNDS, _QUICK_CALL_ROUNDS = 1, 3
_IMPORTS = 5
# Only a process that hangs takes this long.
_TIMEOUT = 600

_IMPORT = """
import time
start = time.perf_counter()
import jax, equinox, eqx_fastjit
eqx_fastjit.filter_jit
print(time.perf_counter() - start)
"""


# --- in the forks --------------------------------------------------------------------


def _call(name: str, change: Callable[..., Any]) -> Callable[[], Any]:
    """The call of a program, with another function in place of its jitted one.

    That is what `change` returns for the jitted function and its first arguments.
    """
    bench = load_bench()
    contenders = importlib.import_module("eqx_fastjit.bench._contenders")

    def filter_jit(fun: Any, **options: Any) -> Any:
        jitted = eqx_fastjit.filter_jit(fun, **options)
        changed: list[Any] = []

        @functools.wraps(fun)
        def call(*args: Any) -> Any:
            if not changed:
                changed.append(change(jitted, args))
            return changed[0](*args)

        return call

    with mock.patch.dict(contenders.FILTER_JITS, ours=filter_jit):
        return bench.make_case(name, ("ours",))["ours"]


class _Called(Exception):
    """A program has called its function: `args` are that, and its arguments."""


def _program(name: str) -> tuple[Any, tuple[Any, ...]]:
    """The jitted function of a program, and its arguments once they are ready."""
    import jax

    def stop(function: Any, args: Any) -> Any:
        raise _Called(function, args)

    try:
        _call(name, stop)()
    except _Called as program:
        function, args = program.args
    jax.block_until_ready([x for x in jax.tree.leaves(args) if _waits(x)])
    return function, args


def _waits(x: Any) -> bool:
    return hasattr(x, "block_until_ready")


def _use_cache(folder: str) -> None:
    """Enable JAX's persistent cache for all programs, however quick to compile."""
    import jax

    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def export(name: str, folder: str) -> dict[str, Any]:
    """Write a file for each form, or note why it cannot be saved."""
    function, args = _program(name)
    out: dict[str, Any] = {}
    try:
        exported = function.export(*args)
    except ValueError as e:
        return {form: {"reason": str(e)} for form in ("portable", "compiled")}
    for form in ("portable", "compiled"):
        path = os.path.join(folder, form)
        try:
            exported.save(path, **{"portable": False, form: True})
        except ValueError as e:
            out[form] = {"reason": str(e)}
        else:
            out[form] = {"bytes": os.path.getsize(path)}
    return out


def first_result(name: str, way: str, folder: str) -> float:
    """Seconds from the arguments to the first result."""
    import jax

    function, args = _program(name)
    if way in ("cached", "portable"):
        _use_cache(os.path.join(folder, "cache"))
    start = time.perf_counter()
    if way in ("portable", "compiled"):
        function = _load(args, way, folder)
    jax.block_until_ready(_arrays(function(*args)))
    return time.perf_counter() - start


def _load(args: Any, form: str, folder: str) -> Any:
    # Without native code the figure would be wrong, so the warning is an error.
    warnings.simplefilter("error")
    return eqx_fastjit.load(
        os.path.join(folder, form),
        example=args,
        trusted=form == "compiled",
    )


def _arrays(out: Any) -> list[Any]:
    import jax

    return [x for x in jax.tree.leaves(out) if isinstance(x, jax.Array)]


def later_calls(name: str, form: str, folder: str, rounds: int) -> dict[str, Any]:
    """Microseconds per call of the loaded function and of `filter_jit`.

    Raises `OutputsDiffer` if their results differ.
    """
    from eqx_fastjit.bench import measure

    steps = measure(
        {
            "loaded": _call(name, lambda _, args: _load(args, form, folder)),
            "filter_jit": _call(name, lambda function, _: function),
        },
        rounds,
    )
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return {who: timing.dispatch for who, timing in stop.value.items()}


# --- the process that forks ----------------------------------------------------------


def _in_fork(work: Callable[..., Any], *args: Any) -> Any:
    """The result of `work` in a fork of this process. Raises `RuntimeError`."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)

    def run() -> None:
        try:
            sending.send((True, work(*args)))
        except BaseException as e:
            last = traceback.format_exception_only(e)[-1].strip()
            sending.send((False, last))

    process = context.Process(target=run)
    gc.collect()
    with warnings.catch_warnings():
        # Warns about NumPy's idle threads. JAX has no threads before its first use.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    sending.close()
    if not receiving.poll(_TIMEOUT):
        process.kill()
    try:
        good, value = receiving.recv()
    except EOFError:
        good, value = False, f"its process died, or took more than {_TIMEOUT} s"
    process.join()
    receiving.close()
    if not good:
        raise RuntimeError(value)
    return value


def measure_program(name: str, rounds: int, call_rounds: int) -> dict[str, Any]:
    """All figures of a program.

    **Arguments:**

    - `name`: the name of the program.
    - `rounds`: number of first results of each way.
    - `call_rounds`: number of rounds of later calls.

    **Returns:** `forms` (size, or why it was refused), `seconds` of each way and round,
    and `calls`. Raises `RuntimeError` if a subprocess fails.
    """
    with tempfile.TemporaryDirectory(prefix="eqx_fastjit") as folder:
        forms = _in_fork(export, name, folder)
        ways = [way for way in WAYS if "reason" not in forms.get(way, {})]
        for way in ways:
            if way in ("cached", "portable"):  # fill the cache
                _in_fork(first_result, name, way, folder)
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for i in range(rounds):
            for way in ways[i % len(ways) :] + ways[: i % len(ways)]:
                seconds[way].append(_in_fork(first_result, name, way, folder))
        out = {"name": name, "forms": forms, "seconds": seconds, "calls": {}}
        for form in ("compiled", "portable"):
            if form in ways:
                out["calls"] = _in_fork(later_calls, name, form, folder, call_rounds)
                out["called"] = form
                break
    return out


def _import_seconds() -> list[float]:
    """Seconds to import JAX, Equinox and this package, in fresh processes."""
    out = []
    for _ in range(_IMPORTS + 1):
        command = [sys.executable, "-c", _IMPORT]
        run = subprocess.run(command, check=True, text=True, capture_output=True)
        out.append(float(run.stdout))
    return out[1:]


def _chosen(names: list[str] | None) -> list[str]:
    bench = load_bench()
    zoo = [x for x in bench.case_names() if bench.case_info(x).group == "zoo"]
    unknown = sorted(set(names or ()) - set(zoo))
    if unknown:
        raise SystemExit(f"no program of the zoo: {', '.join(unknown)}")
    return [name for name in zoo if not names or name in names]


def _import_programs(names: list[str]) -> None:
    """Import what the programs need once, before the forks."""
    # As `pip install` does. Otherwise, if Python does not write bytecode, each process
    # would compile the modules that `load` imports.
    package = Path(eqx_fastjit.__file__ or "").parent
    compileall.compile_dir(package, maxlevels=3, quiet=2)
    importlib.import_module("equinox")
    importlib.import_module("eqx_fastjit.bench._session")
    for name in names:
        case = load_bench().case_info(name)
        if not case.missing:
            file = case.makers.args[0]  # type: ignore[attr-defined]
            importlib.import_module(f"eqx_fastjit.bench._zoo.{file}")


def _summary(entry: dict[str, Any]) -> str:
    """A line of progress."""
    medians = {k: statistics.median(v) for k, v in entry["seconds"].items()}
    shown = ", ".join(f"{way} {x:.2f} s" for way, x in medians.items())
    return f"{entry['name']}: {shown}"


def _keep_others(results: Any, before: Any, names: list[str]) -> None:
    """Keep what was measured of other programs, if it was here and with the same."""
    keys = ("schema", "machine", "versions", "engine")
    if any(results[key] != before.get(key) for key in keys):
        raise SystemExit("FILE is of another machine or of other versions")
    programs = [p for p in before["programs"] if p["name"] not in names]
    results["programs"] = programs
    problems = [p for p in before["problems"] if p.partition(":")[0] not in names]
    results["problems"] = problems
    results["command"] = f"{before['command']} && {results['command']}"


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    # Imported here, because asv imports this module beside commits without these names.
    from eqx_fastjit.bench._results import dumps, new_results

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--cases",
        nargs="+",
        metavar="NAME",
        help="zoo programs to measure; FILE keeps the others",
    )
    parser.add_argument(
        "--quick", action="store_true", help="one round: finds errors only"
    )
    options = parser.parse_args(argv)
    names = _chosen(options.cases)
    passed = ["--cases", *options.cases] if options.cases else []
    passed += ["--quick"] * options.quick
    command = shlex.join(["python", "-m", "benchmarks.startup", *passed])
    results = new_results(command, eqx_fastjit.engine())
    results["imports"] = _import_seconds()
    results["programs"] = []
    if options.cases and options.json.exists():
        _keep_others(results, json.loads(options.json.read_text()), names)
    _import_programs(names)
    for name in names:
        if missing := load_bench().case_info(name).missing:
            results["problems"].append(f"{name}: needs {', '.join(missing)}")
            continue
        rounds = _QUICK_ROUNDS if options.quick else _ROUNDS
        call_rounds = _QUICK_CALL_ROUNDS if options.quick else _CALL_ROUNDS
        try:
            entry = measure_program(name, rounds, call_rounds)
        except RuntimeError as e:
            results["problems"].append(f"{name}: {e}")
            print(results["problems"][-1], file=sys.stderr)
            continue
        results["programs"].append(entry)
        print(_summary(entry), flush=True)
        # Saved after each program, so that an interruption loses nothing.
        options.json.write_text(dumps(results) + "\n", encoding="utf-8")
    return int(bool(results["problems"]))


if __name__ == "__main__":
    sys.exit(main())
