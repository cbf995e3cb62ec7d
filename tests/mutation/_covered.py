"""Which tests run a line of the source, and how long they take.

A mutant runs only these tests, fastest first. That takes seconds, where all tests of an
area take minutes. coverage.py counts lines of Python and gcov lines of C, for each
test, including the processes that it starts.
"""

import ast
import atexit
import functools
import json
import subprocess
import sysconfig
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ._run import build, run_tests


# Seconds. The slowest area's tests take minutes, so an hour means a hang.
_LIMIT = 3600.0


class Fixture(NamedTuple):
    """A fixture that tests share: the one that runs first pays for all."""

    seconds: float
    tests: list[str]


class Covered(NamedTuple):
    """Coverage and durations of an area's tests."""

    # The seconds of each test that passed, without those of shared fixtures.
    seconds: dict[str, float]
    # For each file and line, the tests that run it, as indices into `seconds`.
    lines: dict[str, dict[int, list[int]]]
    fixtures: tuple[Fixture, ...] = ()

    def cost(self, tests: Iterable[str]) -> float:
        """The seconds that tests take together."""
        chosen = set(tests)
        shared = [f.seconds for f in self.fixtures if not chosen.isdisjoint(f.tests)]
        return sum(self.seconds[test] for test in chosen) + sum(shared)

    def tests_of(self, file: Path, lines: Iterable[int], budget: float) -> list[str]:
        """Tests that run any of these lines, fastest first.

        A line that runs only on import gets the tests that run anything of its file,
        those named after the file first.

        **Arguments:**

        - `file`: path from the root.
        - `lines`: lines of a statement.
        - `budget`: seconds that the tests may take in all. There is at least one test,
            if any exists.
        """
        known = self.lines.get(file.as_posix(), {})
        found = {test for line in lines for test in known.get(line, ())}
        names = list(self.seconds)
        own = file.stem.strip("_")
        if found:
            order = [(0, self.cost([names[i]]), names[i]) for i in found]
        else:
            anything = {test for tests in known.values() for test in tests}
            order = [
                (int(own not in names[i]), self.cost([names[i]]), names[i])
                for i in anything
            ]
        out: list[str] = []
        for _, _, name in sorted(order):
            if not out or self.cost([*out, name]) <= budget:
                out.append(name)
        return out

    @staticmethod
    def of_all(parts: Iterable["Covered"]) -> "Covered":
        """Merge the coverage of several test files."""
        seconds: dict[str, float] = {}
        lines: dict[str, dict[int, list[int]]] = {}
        fixtures: list[Fixture] = []
        for part in parts:
            fixtures += part.fixtures
            for file, by_line in part.lines.items():
                into = lines.setdefault(file, {})
                for line, tests in by_line.items():
                    into.setdefault(line, []).extend(len(seconds) + i for i in tests)
            seconds |= part.seconds
        return Covered(seconds, lines, tuple(fixtures))

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self._asdict()))

    @staticmethod
    def load(path: Path) -> "Covered":
        """Read a file that `save` has written."""
        known = json.loads(path.read_text())
        lines = {
            file: {int(n): tests for n, tests in by_line.items()}
            for file, by_line in known["lines"].items()
        }
        return Covered(
            known["seconds"], lines, tuple(Fixture(*x) for x in known["fixtures"])
        )


# On Python 3.11, threads that parse at the same time may get a `SystemError` ("AST
# constructor recursion depth mismatch", python/cpython#106905).
_parsing = threading.Lock()


@functools.lru_cache(maxsize=128)
def _parse(source: str) -> ast.Module:
    with _parsing:
        return ast.parse(source)


def statement(source: str, line: int) -> range:
    """The lines of the statement that contains a line. For a block, only its head."""
    best = range(line, line + 1)
    size = float("inf")
    for node in ast.walk(_parse(source)):
        if not isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            continue
        body = getattr(node, "body", None)
        first = getattr(node, "lineno", 0) or node.pattern.lineno  # type: ignore[reportAttributeAccessIssue]
        last = body[0].lineno - 1 if body else node.end_lineno or first  # type: ignore[reportAttributeAccessIssue]
        span = range(first, max(first, last) + 1)
        if line in span and len(span) < size:
            best, size = span, len(span)
    return best


def lines_to_run(source: str, line: int) -> set[int]:
    """The lines of Python that a test of a line has to run: those of its statement.

    All tests import a module, and only those that start processes are seen to. So if
    the line assigns constants of the module, it is the lines that use them; and none
    for others outside of functions.
    """
    tree = _parse(source)
    lines = statement(source, line)
    names = {
        name.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.lineno in lines
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    uses = {
        used
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id in names
        for used in statement(source, node.lineno)
        if node.lineno not in lines
    }
    bodies = [
        range(node.body[0].lineno, (node.end_lineno or 0) + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return uses or (set(lines) if any(line in body for body in bodies) else set())


def record(tree: Path, tests: Sequence[str]) -> Covered:
    """Run tests, and record which lines of the source they run.

    **Arguments:**

    - `tree`: a copy of the tree.
    - `tests`: test files.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        objects = f"--build-temp={folder / 'objects'}"
        flags = flags_of_counters(folder)
        if not build(tree, flags, objects):
            raise SystemExit("the extension cannot be built")
        report = folder / "tests.json"
        env = {"MUTATION_RECORD": str(report)}
        env |= counted_c(folder) | counted_python(tree, folder)
        run_tests(tree, tests, _LIMIT, env=env, options=())
        found = json.loads(report.read_text())
        results, fixtures = found["tests"], found["fixtures"]
        by_line = python_lines(tree, folder) | c_lines(folder)
        if not build(tree):
            raise SystemExit("the extension cannot be built")
        failed = [test for test, result in results.items() if not result["passed"]]
        if failed:
            # Tests that trace Python or start processes may fail under coverage; run
            # them without.
            run_tests(
                tree, failed, _LIMIT, env={"MUTATION_RECORD": str(report)}, options=()
            )
            results |= {
                test: {**result, "name": results[test]["name"]}
                for test, result in json.loads(report.read_text())["tests"].items()
            }
    passed = {test: result for test, result in results.items() if result["passed"]}
    for test in results.keys() - passed.keys():
        print(f"left out, as it fails without a mutant: {test}", flush=True)
    places = {test: i for i, test in enumerate(passed)}
    tests = {result["name"]: [test] for test, result in passed.items()}
    tests |= {
        name: [test for test in fixture["tests"] if test in passed]
        for name, fixture in fixtures.items()
    }
    lines = {
        file: {
            line: sorted({places[t] for name in names for t in tests.get(name, ())})
            for line, names in by_number.items()
        }
        for file, by_number in by_line.items()
    }
    return Covered(
        {test: x["seconds"] for test, x in passed.items()},
        lines,
        tuple(Fixture(x["seconds"], tests[name]) for name, x in fixtures.items()),
    )


# --- Python --------------------------------------------------------------------------

_CONFIG = """
[run]
source = {tree}/eqx_fastjit
data_file = {folder}/data
parallel = true
concurrency = thread,multiprocessing
context = ${{MUTATION_TEST-}}
disable_warnings = no-data-collected,module-not-measured,no-sysmon
"""
_START = (
    "import os; 'COVERAGE_PROCESS_START' in os.environ "
    "and __import__('coverage').process_startup()"
)


def counted_python(tree: Path, folder: Path) -> dict[str, str]:
    """The environment in which every process records the lines that it runs."""
    config = folder / "coveragerc"
    config.write_text(_CONFIG.format(tree=tree, folder=folder))
    _start_in_processes()
    return {"COVERAGE_PROCESS_START": str(config)}


@functools.cache
def _start_in_processes() -> None:
    """Have coverage start in processes with that environment, until this one ends."""
    # On the path of every process, even if a test changes the environment.
    start = Path(sysconfig.get_path("purelib")) / "mutation_coverage.pth"
    start.write_text(_START)
    atexit.register(start.unlink, missing_ok=True)


def python_lines(tree: Path, folder: Path) -> dict[str, dict[int, list[str]]]:
    """The names of the tests that run each line of each file."""
    from coverage import Coverage

    combined = Coverage(data_file=str(folder / "data"), config_file=False)
    combined.combine([str(folder)], keep=True)
    data = combined.get_data()
    return {
        Path(file).relative_to(tree).as_posix(): {
            line: sorted({x for context in contexts for x in context.split("|")} - {""})
            for line, contexts in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }


# --- C -------------------------------------------------------------------------------

_DUMP = """
extern void __gcov_dump(void);
extern void __gcov_reset(void);
__attribute__((visibility("default"))) void mutation_dump(void);
void mutation_dump(void) { __gcov_dump(); __gcov_reset(); }
"""


def flags_of_counters(folder: Path) -> dict[str, str]:
    """The environment to build the extension with line counters."""
    header = folder / "mutation_dump.h"
    header.write_text(_DUMP)
    flags = "--coverage -O0"
    return {"CFLAGS": f"{flags} -include {header}", "LDFLAGS": flags}


def counted_c(folder: Path) -> dict[str, str]:
    """The environment in which line counters are written to a folder."""
    return {"GCOV_PREFIX": str(folder), "GCOV_PREFIX_STRIP": "99"}


def c_lines(folder: Path) -> dict[str, dict[int, list[str]]]:
    """The names of the tests that run each line of each file."""
    (notes,) = (folder / "objects").rglob("_native.gcno")
    lines: dict[str, dict[int, list[str]]] = {}
    for counters in sorted(folder.glob("tests/*/*/_native.gcda")):
        for file, executed in _executed(notes, counters):
            for line in executed:
                by_line = lines.setdefault(file, {})
                by_line.setdefault(line, []).append(counters.parent.parent.name)
    return lines


def _executed(notes: Path, counters: Path) -> Iterator[tuple[str, list[int]]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / notes.name).write_bytes(notes.read_bytes())
        (folder / counters.name).write_bytes(counters.read_bytes())
        command = ["gcov", "--json-format", "--stdout", counters.name]
        out = subprocess.run(command, cwd=folder, capture_output=True, check=True)
    found: Any = json.loads(out.stdout)
    for file in found["files"]:
        # the headers of Python are listed, too
        if Path(file["file"]).name in ("_native.c", "_walk.h"):
            executed = [x["line_number"] for x in file["lines"] if x["count"]]
            yield file["file"], executed
