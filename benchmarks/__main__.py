"""Time `jax.jit`, `equinox.filter_jit` and `eqx_fastjit.filter_jit` side by side.

    python -m benchmarks [--cases NAMES] [--device cpu|gpu] [--dispatch] [--json FILE]
    python -m benchmarks --instructions [NAMES] [--against FILE] [--json FILE]

Contenders take turns in one process, after checking that all return the same results.
Ctrl-C shows and writes what was timed until then. The second form counts instructions
of a call, by callgrind. With --against, it compares eqx_fastjit's over those of the
first rival, `flat` if there is one, with the same in the other file.

The exit code is 1 if something could not be timed, or if that ratio is 2% above the
other file's; 2 if nothing could be measured, as after bad input; and 130 after Ctrl-C.
"""

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

from benchmarks import parser_of


class Refused(Exception):
    """Why nothing can be measured, in one line."""


# What `--instructions` does not use.
_OF_TIMES = ("cases", "device", "rounds", "dispatch")


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("benchmarks", __doc__)
    add = parser.add_argument
    add("--cases", default="table", help="cases or groups, separated by commas; or all")
    add("--device", choices=("cpu", "gpu"), help="by default, JAX's default device")
    add("--rounds", type=int, default=30, help="by default %(default)s")
    add("--dispatch", action="store_true", help="also show times until calls return")
    add("--instructions", nargs="*", metavar="CASE", help="count, rather than time")
    add("--against", type=Path, metavar="FILE", help="fail if a ratio is 2%% above it")
    return parser


def _use(device: str | None) -> None:
    """Choose the device, before JAX is first used."""
    import jax

    # A persistent cache would be shared by the contenders.
    jax.config.update("jax_enable_compilation_cache", False)
    if device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    if device == "gpu":
        try:
            jax.config.update("jax_default_device", jax.devices("gpu")[0])
        except RuntimeError:
            raise Refused("--device gpu: JAX finds no GPU here") from None


def _about(case: Any) -> dict[str, Any]:
    """What a results file says of a case."""
    return {"name": case.name, "group": case.group, "title": case.title}


def _run(cases: list[Any], options: argparse.Namespace, results: Any) -> None:
    """Time all cases. `results` has what was measured, also after Ctrl-C."""

    def note(*_: Any) -> None:
        # Where the exception is raised within C++, JAX may go on, or raise another.
        results["interrupted"] = True
        raise KeyboardInterrupt

    outer_handler = signal.signal(signal.SIGINT, note)
    try:
        for i, case in enumerate(cases, 1):
            if results["interrupted"]:
                break
            print(f"timing {case.name} ({i} of {len(cases)})", file=sys.stderr)
            _time(case, options.rounds, results)
    except KeyboardInterrupt:
        pass  # which `results` says
    finally:
        signal.signal(signal.SIGINT, outer_handler)


def _time(case: Any, rounds: int, results: Any) -> None:
    """Time a case, and add its times, or why there are none, to the results."""
    import jax

    from benchmarks.timing import measure, TimesByMode

    times: TimesByMode = {}
    try:
        measure(case, rounds, times=times)
    except Exception as e:
        if not results["interrupted"]:
            why = f"{case.name}: {type(e).__name__}: {str(e).strip()}"
            first_line, _, _ = why.partition("\n")
            results["problems"].append(first_line)
    finally:
        if times:
            results["cases"].append({**_about(case), "times": times})
    jax.clear_caches()  # of a thousand programs, for some cases


def _count(options: argparse.Namespace) -> int:
    """Count instructions, print them, and compare them with those of a file."""
    from benchmarks import instructions
    from benchmarks.cases import CASES, choose, UnknownCase
    from benchmarks.results_file import dumps, new_results

    before: Any = {"cases": []}
    try:
        chosen = choose(",".join(options.instructions) or instructions.COUNTED)
        names = [name for name in chosen if "ours" in CASES[name].contenders]
        if not names:
            raise Refused("--instructions: eqx_fastjit is no contender there")
        if options.against:
            before = _read_counts(options.against, names)
        results = new_results("benchmarks")
        counts = instructions.count("benchmarks.instructions", *names)
    except (UnknownCase, instructions.CannotCount, OSError) as e:
        raise Refused(str(e)) from None

    for name, by_contender in counts.items():
        entry = {**_about(CASES[name]), "instructions": by_contender}
        results["cases"].append(entry)
    print(instructions.markdown(results))
    if options.json:
        options.json.write_text(dumps(results), encoding="utf-8")

    slower = instructions.slower_cases(results, before)
    for line in slower:
        print(line)
    return 1 if slower else 0


def _read_counts(file: Path, names: list[str]) -> Any:
    """A results file that has instructions of some of these cases."""
    try:
        results = json.loads(file.read_text(encoding="utf-8"))
        counted = {x["name"] for x in results["cases"] if x["instructions"]}
    except (ValueError, LookupError, TypeError):
        raise Refused(f"--against: {file} has no instructions") from None
    if counted.isdisjoint(names):
        raise Refused(f"--against: {file} has none of these cases")
    return results


def _main(options: argparse.Namespace, defaults: argparse.Namespace) -> int:
    if options.rounds < 1:
        raise Refused(f"--rounds {options.rounds}: expected at least 1")
    if options.instructions is not None:
        for name in _OF_TIMES:
            if getattr(options, name) != getattr(defaults, name):
                raise Refused(f"--{name} is for times, not for --instructions")
        return _count(options)
    if options.against:
        raise Refused("--against is for --instructions")

    from benchmarks.cases import CASES, choose, UnknownCase
    from benchmarks.pages import report
    from benchmarks.results_file import busy, describe, dumps, new_results

    try:
        cases = [CASES[name] for name in choose(options.cases)]
    except UnknownCase as e:
        raise Refused(f"--cases: {e}") from None

    _use(options.device)
    results = new_results("benchmarks")
    print(describe(results), flush=True)
    _run(cases, options, results)
    results["busy"] = results["busy"] or busy()

    print(f"\n{report(results, options.dispatch)}")
    if options.json:
        options.json.write_text(dumps(results), encoding="utf-8")
    if results["interrupted"]:
        print("Interrupted: these are the results so far.")
        return 130
    return 1 if results["problems"] else 0


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = _parser()
    try:
        return _main(parser.parse_args(argv), parser.parse_args([]))
    except Refused as e:
        why = str(e)
    except ModuleNotFoundError as e:
        why = f'{e}: run pip install -e ".[bench]"'
    except KeyboardInterrupt:  # before there was anything to keep
        return 130
    print(f"python -m benchmarks: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
