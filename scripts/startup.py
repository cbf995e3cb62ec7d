"""What exporting saves at start-up, for the functions of the zoo.

    python -m scripts.startup --json benchmarks/results/startup.json
    python -m scripts.startup --cases gru,statics_200

Each function has four ways to its first result, each in a process of its own: `anew`,
traced and compiled; `cached`, traced, with a warm persistent cache of JAX; `portable`
and `compiled`, the forms of an exported file, the first with a warm cache too. The
clock runs from the arguments to the result, and so excludes imports. `calls` is the
time of a later call of the compiled form, over that of our `filter_jit`. Functions are
compiled for `EQX_ON_ERROR=nan`, since checks cannot be exported. This takes 10 minutes
on two cores; run nothing else meanwhile. The second command is a quick look.
"""

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks import parser_of, prefer_installed_package


WAYS = ("anew", "cached", "portable", "compiled")
_ROUNDS, _CALL_ROUNDS = 3, 25


# --- in processes of their own, which import JAX --------------------------------------


def _function_of(name: str) -> tuple[Any, tuple[Any, ...]]:
    """The function of a case, jitted by `eqx_fastjit`, and the arguments of a call."""
    import eqx_fastjit
    from benchmarks import contenders

    calls: list[tuple[Any, tuple[Any, ...]]] = []

    def filter_jit(fun: Any) -> Any:
        jitted = eqx_fastjit.filter_jit(fun)

        def record(*args: Any) -> Any:
            """In place of a call, which is not wanted here."""
            calls.append((jitted, args))
            return args  # a loop of the case's goes on with what is returned

        return record

    contenders.FILTER_JITS["ours"] = filter_jit  # before the cases use it
    from benchmarks.cases import CASES

    call = CASES[name].build(("ours",))["ours"]
    call()
    return calls[0]


def _export(name: str, path: str) -> None:
    function, args = _function_of(name)
    function.export(*args).save(path, compiled=True)


def _first_result(name: str, path: str, way: str) -> float:
    """Seconds from the arguments to the first result."""
    import equinox as eqx
    import jax

    import eqx_fastjit._export  # with what `load` would import

    function, args = _function_of(name)
    jax.block_until_ready(eqx.filter(args, eqx.is_array))
    # From now on: what is compiled to make the arguments is not cached.
    if way in ("cached", "portable"):
        jax.config.update("jax_compilation_cache_dir", f"{path}-cache")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

    start = time.perf_counter()
    if way in ("portable", "compiled"):
        function = eqx_fastjit.load(path, example=args, trusted=way == "compiled")
    jax.block_until_ready(eqx.filter(function(*args), eqx.is_array))
    return time.perf_counter() - start


def _later_calls(name: str, path: str) -> list[float]:
    """Time of a call of the loaded function over one of `filter_jit`, in each round."""
    import eqx_fastjit
    from benchmarks import timing
    from benchmarks.case import Case

    function, args = _function_of(name)
    loaded = eqx_fastjit.load(path, example=args, trusted=True)
    # Each makes the call that is timed.
    makers = {
        "loaded": lambda: lambda: loaded(*args),
        "jitted": lambda: lambda: function(*args),
    }
    case = Case(name, group="", title="", makers=lambda: makers, contenders=(*makers,))

    times = timing.measure(case, _CALL_ROUNDS)["blocked"]
    return [a / b for a, b in zip(times["loaded"], times["jitted"], strict=True)]


# --- in the process that starts them --------------------------------------------------


def _in_a_process(function: Any, *args: str) -> Any:
    """What a function returns in a fresh process."""
    # Read when Equinox and JAX are imported, which is in the fresh process. No way has
    # another cache than its own.
    os.environ["EQX_ON_ERROR"] = "nan"
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def measure(name: str) -> dict[str, Any]:
    """Seconds of each way in each round, and ratios of later calls."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/{name}"
        _in_a_process(_export, name, path)
        for way in ("cached", "portable"):  # to fill the cache
            _in_a_process(_first_result, name, path, way)

        for _ in range(_ROUNDS):
            for way in WAYS:
                seconds[way].append(_in_a_process(_first_result, name, path, way))
        calls = _in_a_process(_later_calls, name, path)
    return {"name": name, "seconds": seconds, "calls": calls}


def markdown(results: dict[str, Any]) -> str:
    """The table of a results file: each way to start, over a start anew."""
    from benchmarks.pages import made_by
    from benchmarks.table import markdown_table

    figures: dict[str, list[float]] = {}
    for entry in results["programs"]:
        anew, *others = [statistics.median(entry["seconds"][way]) for way in WAYS]
        over_anew = [seconds / anew for seconds in others]
        calls = statistics.median(entry["calls"])
        figures[f"`{entry['name']}`"] = [anew, *over_anew, calls]
    columns = zip(*figures.values(), strict=True)
    figures["median"] = [statistics.median(column) for column in columns]

    over = [f"{way} / anew" for way in WAYS[1:]]
    head = ["function", "anew, s", *over, "calls"]
    rows = [[name, *(f"{x:.2f}" for x in row)] for name, row in figures.items()]
    table = markdown_table(head, rows)
    return f"{table}\n\n{made_by(results)}"


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    from benchmarks.cases import choose
    from benchmarks.results_file import collect

    parser = parser_of("scripts.startup", __doc__)
    parser.add_argument("--cases", type=choose, default="zoo", metavar="NAMES")
    options = parser.parse_args(argv)
    return collect("scripts.startup", options.cases, measure, options.json, markdown)


if __name__ == "__main__":
    prefer_installed_package()  # by `sys.path`, which fresh processes get as well
    sys.exit(main())
