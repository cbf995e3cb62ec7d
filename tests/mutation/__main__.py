"""`python -m tests.mutation --minutes 60`: how many faults the tests notice, by area.

Takes mutants in an order that depends on the seed, until the time is over, and writes
what became of them. The exit code is 1 if the tests notice fewer than they should.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import queue
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.records import stamp, write

from ._areas import Area, AREAS, ROOT
from ._c import c_mutants
from ._mutants import in_seeded_order, Mutant, python_mutants
from ._run import (
    build,
    copy_tree,
    INVALID,
    limit_of,
    Outcome,
    run_mutant,
    run_tests,
    SURVIVED,
)


# Mutants that change nothing that could be noticed: `[{"file": ..., "before": ...,
# "after": ..., "reason": ...}, ...]`, with the lines that differ.
EQUIVALENT = pathlib.Path(__file__).parent / "equivalent.json"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation", description=__doc__
    )
    names = [area.name for area in AREAS]
    parser.add_argument("--minutes", type=float, default=60, help="for all areas")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--area", choices=names, action="append", help="only this one")
    parser.add_argument("--most", type=int, help="mutants of each area, at most")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="mutants at once"
    )
    parser.add_argument("--json", type=pathlib.Path, help="file for the result")
    return parser.parse_args()


def mutants_of(area: Area, root: pathlib.Path = ROOT) -> list[Mutant]:
    """All mutants of an area."""
    out: list[Mutant] = []
    for file in area.files(root):
        source = (root / file).read_text(encoding="utf-8")
        find = c_mutants if file.suffix == ".c" else python_mutants
        out += find(file, source)
    return out


def entry_of(mutant: Mutant, outcome: Outcome) -> dict[str, Any]:
    """What is kept of a mutant that was not noticed."""
    return {
        "file": mutant.file.as_posix(),
        "line": mutant.line,
        "operator": mutant.operator,
        "before": outcome.before,
        "after": outcome.after,
    }


def reason_for(entry: dict[str, Any], equivalent: list[dict[str, str]]) -> str:
    """Why nobody could notice this mutant; empty if somebody could."""
    for known in equivalent:
        if all(known[name] == entry[name] for name in ("file", "before", "after")):
            return known["reason"]
    return ""


def summary(
    area: Area,
    total: int,
    outcomes: list[tuple[Mutant, Outcome]],
    equivalent: list[dict[str, str]],
) -> dict[str, Any]:
    """The result of an area.

    **Arguments:**

    - `area`: what was mutated.
    - `total`: how many places there are to mutate.
    - `outcomes`: of the mutants that were run.
    - `equivalent`: what is known of those that nobody could notice.
    """
    valid = [(m, o) for m, o in outcomes if o.outcome != INVALID]
    survived = [entry_of(m, o) for m, o in valid if o.outcome == SURVIVED]
    for entry in survived:
        if reason := reason_for(entry, equivalent):
            entry["equivalent"] = reason
    unnoticed = [entry for entry in survived if "equivalent" not in entry]
    killed = len(valid) - len(survived)
    counted = killed + len(unnoticed)
    return {
        "area": area.name,
        "goal": area.goal,
        "places": total,
        "mutants": len(valid),
        "invalid": len(outcomes) - len(valid),
        "killed": killed,
        "equivalent": len(survived) - len(unnoticed),
        "share": killed / counted if counted else None,
        "survived": survived,
    }


class _Trees:
    """Copies of the tree, one for each mutant that runs at the same time."""

    def __init__(self, folder: pathlib.Path, n: int):
        self.free: queue.Queue[pathlib.Path] = queue.Queue()
        for i in range(n):
            copy_tree(ROOT, folder / str(i))
            if not build(folder / str(i)):
                raise SystemExit("the extension cannot be built")
            self.free.put(folder / str(i))

    def use(self, do: Callable[[pathlib.Path], Any]) -> Any:
        """Do something in a copy that nobody else is using."""
        tree = self.free.get()
        try:
            return do(tree)
        finally:
            self.free.put(tree)


def _run_area(
    area: Area, options: argparse.Namespace, trees: _Trees, until: float
) -> tuple[int, list[tuple[Mutant, Outcome]]]:
    """How many places there are, and what became of as many as there was time for."""
    everything = mutants_of(area)
    order = in_seeded_order(everything, options.seed)
    tests = area.tests_of(pathlib.Path("none.py"))
    code, failed, seconds = trees.use(lambda tree: run_tests(tree, tests, 3600))
    if code != 0:
        raise SystemExit(f"{area.name}: without a mutant the tests fail: {failed}")
    limit = limit_of(seconds)

    def run(mutant: Mutant) -> tuple[Mutant, Outcome] | None:
        if time.monotonic() > until:
            return None
        own = area.tests_of(mutant.file)
        outcome = trees.use(lambda tree: run_mutant(tree, mutant, own, limit))
        print(
            f"{area.name}: {outcome.outcome} {mutant.file}:{mutant.line} "
            f"{mutant.operator} ({outcome.seconds:.0f} s) {outcome.test}",
            flush=True,
        )
        return mutant, outcome

    with concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
        found = list(pool.map(run, order[: options.most]))
    if area.sources[0].endswith(".c"):
        for _ in range(options.workers):
            trees.use(build)  # the source is as it was, and what was built is not
    return len(order), [x for x in found if x is not None]


def _deadlines(areas: list[Area], minutes: float) -> Iterator[tuple[Area, float]]:
    """When each area has to be done; what one leaves goes to those after it."""
    rest = 60 * minutes
    start = time.monotonic()
    for i, area in enumerate(areas):
        weight = area.weight / sum(a.weight for a in areas[i:])
        now = time.monotonic()
        yield area, now + weight * (rest - (now - start))


def main() -> int:
    options = _parse()
    areas = [a for a in AREAS if not options.area or a.name in options.area]
    known = json.loads(EQUIVALENT.read_text(encoding="utf-8"))
    words = ["python -m tests.mutation", f"--minutes {options.minutes:g}"]
    words += [f"--seed {options.seed}"]
    words += [f"--area '{name}'" for name in options.area or ()]
    words += [f"--most {options.most}"] if options.most is not None else []
    report: dict[str, Any] = {
        "command": " ".join(words),
        "seed": options.seed,
        "areas": [],
        **stamp("cosmic-ray"),
    }
    with tempfile.TemporaryDirectory(prefix="mutation") as folder:
        trees = _Trees(pathlib.Path(folder), options.workers)
        for area, until in _deadlines(areas, options.minutes):
            total, outcomes = _run_area(area, options, trees, until)
            found = summary(area, total, outcomes, known)
            report["areas"].append(found)
            print(f"{area.name}: {found['killed']} of {found['mutants']}", flush=True)
            if options.json is not None:
                write(options.json, report)
    short = [a for a in report["areas"] if a["share"] is None or a["share"] < a["goal"]]
    for area in short:
        print(f"{area['area']}: below {area['goal']:.0%}")
    return 1 if short else 0


if __name__ == "__main__":
    raise SystemExit(main())
