"""`python -m tests.mutation --minutes 60`: the share of faults that tests notice.

Runs mutants in an order that depends on the seed until the time is over, and stores
their outcomes by area. The exit code is 1 if the tests of an area notice fewer than
they should.
"""

import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from tests.records import stamp, write

from ._areas import Area, AREAS, C_SUFFIXES, ROOT
from ._c import c_mutants
from ._covered import lines_to_run
from ._kept import Kept
from ._mutants import in_seeded_order, Mutant, python_mutants
from ._run import (
    build,
    Choice,
    INVALID,
    KILLED,
    limit_of,
    Outcome,
    run_mutant,
    run_tests,
    SURVIVED,
    Trees,
    UNCLEAR,
)


# The tests that run for a mutant, fastest first, may take this many seconds. A slower
# test may still notice a survivor: `--again` runs all.
_BUDGET = 60.0
# Seconds. A test that takes longer may start processes.
_DOUBTFUL = 1.0
# Mutants that no test can notice: `[{"file": ..., "before": ..., "after": ...,
# "reason": ...}, ...]`, with the lines that differ.
EQUIVALENT = pathlib.Path(__file__).parent / "equivalent.json"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation", description=__doc__
    )
    names = [area.name for area in AREAS]
    parser.add_argument("--minutes", type=float, default=60, help="time for all areas")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--area", choices=names, action="append", help="only this one")
    parser.add_argument("--most", type=int, help="maximum number of mutants per area")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="number of processes"
    )
    parser.add_argument(
        "--keep",
        type=pathlib.Path,
        help="folder for outcomes, which a later run adds to",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="run the survivors in the folder again, with all current tests of theirs",
    )
    parser.add_argument("--json", type=pathlib.Path, help="write the result here")
    return parser.parse_args()


def mutants_of(area: Area, root: pathlib.Path = ROOT) -> list[Mutant]:
    """All mutants of an area."""
    out: list[Mutant] = []
    for file in area.files(root):
        source = (root / file).read_text(encoding="utf-8")
        find = c_mutants if file.suffix in C_SUFFIXES else python_mutants
        out += find(file, source)
    return out


def entry_of(mutant: Mutant, outcome: Outcome) -> dict[str, Any]:
    """The entry for a mutant that was not noticed."""
    return {
        "file": mutant.file.as_posix(),
        "line": mutant.line,
        "operator": mutant.operator,
        "before": outcome.before,
        "after": outcome.after,
    }


def reason_for(entry: dict[str, Any], equivalent: list[dict[str, str]]) -> str:
    """Why no test can notice this mutant; empty if there is no such reason."""
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
    - `total`: the number of positions to mutate.
    - `outcomes`: the mutants that were run, and their outcomes.
    - `equivalent`: known mutants that no test can notice.
    """
    unclear = sum(o.outcome == UNCLEAR for _, o in outcomes)
    invalid = sum(o.outcome == INVALID for _, o in outcomes)
    valid = [(m, o) for m, o in outcomes if o.outcome not in (INVALID, UNCLEAR)]
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
        "invalid": invalid,
        "unclear": unclear,
        "killed": killed,
        "equivalent": len(survived) - len(unnoticed),
        "share": killed / counted if counted else None,
        "survived": survived,
    }


class _AreaRun:
    """Runs the mutants of one area.

    **Arguments:**

    - `area`: what is mutated.
    - `trees`: copies of the tree.
    - `kept`: outcomes of earlier runs.
    - `again`: whether to run mutants again that survived.
    """

    def __init__(self, area: Area, trees: Trees, kept: Kept, again: bool):
        self.area, self.trees, self.kept, self.again = area, trees, kept, again
        self.covered = kept.covered(area, trees)

    def choice(self, mutant: Mutant) -> Choice:
        """The tests to run for a mutant."""
        lines = {mutant.line}
        if mutant.file.suffix == ".py":
            source = (ROOT / mutant.file).read_text(encoding="utf-8")
            lines = lines_to_run(source, mutant.line)
        budget = math.inf if self.again else _BUDGET
        tests = self.covered.tests_of(mutant.file, lines, budget)
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        return Choice(
            list(files),
            tests,
            limit_of(self.covered.cost(tests)),
            [test for test in tests if self.covered.cost([test]) >= _DOUBTFUL],
        )

    def run(self, mutant: Mutant) -> None:
        """Run one mutant, and store its outcome."""
        choice = self.choice(mutant)
        outcome = self.trees.use(lambda tree: run_mutant(tree, mutant, choice))
        self.kept.add(self.area, mutant, outcome)
        print(
            f"{self.area.name}: {outcome.outcome} {mutant.file}:{mutant.line} "
            f"{mutant.operator} ({outcome.seconds:.0f} s, {len(choice.tests)} tests) "
            f"{outcome.test}",
            flush=True,
        )

    def run_all(
        self, mutants: list[Mutant], until: float, most: int | None, workers: int
    ) -> None:
        """Run the mutants without a known outcome until the time is over."""
        known = self.kept.outcomes(self.area)
        if self.again:
            done = {m for m, o in known.items() if o.outcome != SURVIVED}
            chosen = [m for m in mutants if m in known and m not in done]
        else:
            chosen = [m for m in mutants[:most] if m not in known]

        def run(mutant: Mutant) -> None:
            if time.monotonic() <= until:
                self.run(mutant)

        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            list(pool.map(run, chosen))
        if self.area.sources[0].endswith(C_SUFFIXES):
            for tree in self.trees.all:
                # the source was restored, but the extension is still the mutant's
                build(tree)
        self._look_again(set(chosen))

    def _look_again(self, run: set[Mutant]) -> None:
        """If a test that noticed fails without a mutant too, the outcome is unclear."""
        found = {m: o for m, o in self.kept.outcomes(self.area).items() if m in run}
        tests = {
            o.test for o in found.values() if o.outcome == KILLED and "::" in o.test
        }
        if not tests:
            return
        tested = self.trees.use(
            lambda tree: run_tests(tree, sorted(tests), 3600, options=())
        )
        for mutant, outcome in found.items():
            if outcome.outcome == KILLED and outcome.test in tested.failed:
                print(f"fails without a mutant: {outcome.test}", flush=True)
                self.kept.add(self.area, mutant, outcome._replace(outcome=UNCLEAR))


def _deadlines(runs: list[_AreaRun], end: float) -> Iterator[tuple[_AreaRun, float]]:
    """The time at which each area has to end. Time that is left goes to later areas."""
    for i, run in enumerate(runs):
        weight = run.area.weight / sum(r.area.weight for r in runs[i:])
        now = time.monotonic()
        yield run, now + weight * (end - now)


def _report(options: argparse.Namespace) -> dict[str, Any]:
    words = ["python -m tests.mutation", f"--minutes {options.minutes:g}"]
    words += [f"--seed {options.seed}"]
    words += [f"--area '{name}'" for name in options.area or ()]
    words += [f"--most {options.most}"] if options.most is not None else []
    # The outcomes may then be those of several runs.
    words += ["--keep FOLDER"] if options.keep is not None else []
    report: dict[str, Any] = {"command": " ".join(words), "seed": options.seed}
    return {**report, "areas": [], **stamp("cosmic-ray", "coverage")}


def main() -> int:
    options = _parse()
    areas = [a for a in AREAS if not options.area or a.name in options.area]
    known = json.loads(EQUIVALENT.read_text(encoding="utf-8"))
    report = _report(options)
    end = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="mutation") as name:
        folder = pathlib.Path(name)
        kept = Kept(options.keep or folder / "kept")
        trees = Trees(folder, options.workers)
        # What the tests run is recorded first, so that it takes no area's time.
        runs = [_AreaRun(area, trees, kept, options.again) for area in areas]
        for run, until in _deadlines(runs, end):
            area = run.area
            mutants = in_seeded_order(mutants_of(area), options.seed)
            run.run_all(mutants, until, options.most, options.workers)
            outcomes = kept.outcomes(area)
            tried = [(m, outcomes[m]) for m in mutants if m in outcomes]
            found = summary(area, len(mutants), tried, known)
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
