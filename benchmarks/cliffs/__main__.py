"""Random programs on which a call costs more than it should.

    python -m benchmarks.cliffs [--programs 300] [--seed 0] [--json FILE] [--quick]
    python -m benchmarks.cliffs --replay SEED:INDEX
    python -m benchmarks.cliffs --replay FILE     # or the description itself

Builds random programs of nodes, leaves and statics that people use. Times dispatch with
ours, `jax.jit` on flat arrays, `jax.jit` with the statics removed by hand, and
`equinox.filter_jit`, in turn in one process. Prints the worst programs. Those that
break a limit are first shrunk to the smallest program that still breaks it. The exit
code is 1 if a limit was broken, 0 if none was, and 130 after Ctrl-C, which keeps the
results so far.

Run nothing else meanwhile: on a busy machine, some program breaks every limit.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from ._build import KINDS
from ._find import (
    broken,
    confirmed,
    Found,
    search,
    Settings,
    shrink_worst,
    values,
)
from ._limits import in_words, LIMITS, to_json as outcome_to_json, worst as worst_limit
from ._programs import dumps, from_json, Program, text, to_json
from ._random import random_program
from ._timer import Timer


_QUICK = Settings(rounds=2, shrunk=1, attempts=4)
_KEPT = 10  # number of the worst programs in the results file
_LEVELS = (0, 0.5, 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cliffs", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--programs", type=int, help="number of programs (300; --quick: 3)"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed (0)")
    parser.add_argument(
        "--rounds", type=int, help="rounds per contender (5; --quick: 2)"
    )
    parser.add_argument("--device", choices=("cpu", "gpu"), help="device to run on")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write results here")
    parser.add_argument("--quick", action="store_true", help="finds errors only")
    parser.add_argument(
        "--replay",
        metavar="PROGRAM",
        type=_replayed,
        help="time one program: SEED:INDEX, a description, or a file with one",
    )
    return parser


def _replayed(words: str) -> Program:
    """The program that `--replay` names. Raises `argparse.ArgumentTypeError` for any
    other.
    """
    seed, colon, index = words.partition(":")
    if colon and seed.isdecimal() and index.isdecimal():
        return random_program(int(seed), int(index))
    try:
        described = words if "{" in words else Path(words).read_text(encoding="utf-8")
        program = from_json(json.loads(described))
        unknown = {node.kind for node in program.walk()} - set(KINDS)
        if unknown:
            raise ValueError(f"no such kind of node: {', '.join(sorted(unknown))}")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:
        raise argparse.ArgumentTypeError(f"no such program: {e}") from None
    return program


def _show(title: str, program: Program) -> None:
    print(f"\n{title}\n  {text(program)}")


def _show_worst(found: list[Found], seed: int) -> None:
    for one in found:
        if one.smallest is None:
            continue
        program, outcome = one.smallest
        _show(f"program {seed}:{one.index} breaks '{one.limit.name}', shrunk:", program)
        print(f"  {in_words(outcome)}")
        print(f"  before: {in_words(one.outcome)}")
        print(f"  --replay {shlex.quote(dumps(program))}")
        like = [str(other.index) for other in found if other.like == one.index]
        if like:
            print(f"  as this one: programs {', '.join(like)}")
    rest = [one for one in broken(found) if one.smallest is None and one.like is None]
    if rest:
        numbers = ", ".join(str(one.index) for one in rest)
        print(f"\nbreak a limit too, and were not shrunk: programs {numbers}")
    for limit in LIMITS:
        pairs = sorted(values(found, limit), key=lambda pair: -pair[0])[:1]
        for value, one in pairs:
            if one.smallest is None and limit.at_most:
                title = f"the worst for '{limit.name}', {value:.2f}: program "
                _show(f"{title}{seed}:{one.index}", one.program)
                print(f"  {in_words(one.outcome)}")


def _rows(found: list[Found], results: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each limit, in the format of `benchmarks/targets.py`."""
    from eqx_fastjit.bench._results import short_commit

    rows = []
    for limit in LIMITS:
        numbers = sorted(value for value, _ in values(found, limit))
        if not numbers:
            continue
        levels = [numbers[round(level * (len(numbers) - 1))] for level in _LEVELS]
        what = f"{limit.name}: worst of {len(numbers):,} programs"
        value = levels[-1]
        if not limit.at_most:
            what = f"{limit.name}: of {len(numbers):,} programs"
            value = sum(numbers)
            levels = [value]
        rows.append(
            {
                "what": what,
                "value": value,
                "runs": levels,
                "at_most": limit.at_most,
                "commit": short_commit(results.get("commit", "unknown")),
                "command": results["command"],
            }
        )
    return rows


def _show_rows(rows: list[dict[str, Any]]) -> None:
    print()
    for row in rows:
        verdict = "met" if row["value"] <= row["at_most"] else "BROKEN"
        median = f"(median {row['runs'][1]:.2f})" if len(row["runs"]) > 1 else ""
        bound = f"<= {row['at_most']:g}"
        print(f"{row['what']:64} {row['value']:6.2f} {median:15} {bound:6} {verdict}")


def _results(found: list[Found], options: argparse.Namespace) -> dict[str, Any]:
    import eqx_fastjit
    from eqx_fastjit.bench._results import new_results

    words = ["python", "-m", "benchmarks.cliffs", "--programs", str(options.programs)]
    words += ["--seed", str(options.seed)] + ["--quick"] * options.quick
    results = new_results(shlex.join(words), eqx_fastjit.engine())
    out = {k: v for k, v in results.items() if k not in ("schema", "cases")}
    kept = [one for one in found if one.smallest] or found
    out["problems"] = [
        f"{options.seed}:{one.index}: {one.outcome.refused}"
        for one in found
        if one.outcome.refused
    ]
    return out | {
        "rows": _rows(found, results),
        "worst": [_entry(options.seed, one) for one in kept[:_KEPT]],
    }


def _entry(seed: int, one: Found) -> dict[str, Any]:
    """The entry of a program in the results file."""
    program, outcome = one.smallest or (one.program, one.outcome)
    return {
        "program": f"{seed}:{one.index}",
        "limit": one.limit.name,
        "broken": one.excess > 1,
        "description": to_json(program),
        "text": text(program),
        **outcome_to_json(outcome),
    }


def _replay(time: Timer, program: Program, rounds: int) -> int:
    _show("program:", program)
    outcome = confirmed(time, program, rounds)
    limit, excess = worst_limit(outcome)
    print(f"  {in_words(outcome)}")
    print(f"  breaks '{limit.name}'" if excess > 1 else "  breaks no limit")
    print(f"  --replay {shlex.quote(dumps(program))}")
    return int(excess > 1)


def _found(
    time: Timer, options: argparse.Namespace, settings: Settings
) -> tuple[list[Found], bool]:
    """The results, worst first, and whether Ctrl-C ended the search."""
    found: list[Found] = []

    def note(words: str) -> None:
        print(words, file=sys.stderr, flush=True)

    try:
        for one in search(time, options.seed, options.programs, settings):
            found.append(one)
            if one.excess > 1:
                note(f"program {one.index} breaks '{one.limit.name}'")
            elif len(found) % 20 == 0:
                note(f"{len(found)} of {options.programs}")
        shrink_worst(time, found, settings, note)
    except KeyboardInterrupt:
        found.sort(key=lambda one: -one.excess)
        return found, True
    return found, False


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(argv)
    settings = _QUICK if options.quick else Settings()
    if options.rounds:
        settings = Settings(options.rounds, settings.shrunk, settings.attempts)
    options.programs = options.programs or (3 if options.quick else 300)

    time = Timer(options.device)
    try:
        if options.replay:
            return _replay(time, options.replay, settings.rounds)
        found, interrupted = _found(time, options, settings)
    finally:
        time.close()
    results = _results(found, options) | {"interrupted": interrupted}
    _show_worst(found, options.seed)
    _show_rows(results["rows"])
    for problem in results["problems"]:
        print(f"not timed: {problem}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 130 if interrupted else int(bool(broken(found)))


if __name__ == "__main__":
    sys.exit(main())
