"""Runs the tests with a mutant in a copy of the tree."""

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ._areas import C_SUFFIXES, ROOT
from ._mutants import changed_lines, Mutant, mutate_python


# The files that the tests need.
_TREE = (
    *("eqx_fastjit", "tests", "examples", "scripts", "benchmarks", "docs"),
    *("setup.py", "pyproject.toml", "noxfile.py", "README.md", "CONTRIBUTING.md"),
    *("LICENSE", "MANIFEST.in", "mkdocs.yml", "CHANGELOG.md"),
)
# A mutant may loop forever: its limit is this factor times the tests' usual duration,
# plus `_LEAST` seconds.
_PATIENCE = 3
_LEAST = 30.0

KILLED, TIMEOUT, SURVIVED = "killed", "timeout", "survived"
# INVALID: it does not compile. UNCLEAR: the machine was too slow or out of memory, or
# the failing test also fails without the mutant.
INVALID, UNCLEAR = "invalid", "unclear"


class Outcome(NamedTuple):
    """The outcome of a mutant."""

    # `KILLED`, `TIMEOUT` (also noticed), `SURVIVED`, `INVALID` or `UNCLEAR`.
    outcome: str
    seconds: float
    # The lines that differ.
    before: str
    after: str
    # The test that noticed, if known.
    test: str = ""


class Choice(NamedTuple):
    """The tests that run for a mutant."""

    # Test files, as arguments for pytest.
    files: Sequence[str]
    # The tests, in this order.
    tests: Sequence[str]
    # Seconds after which the tests are ended.
    limit: float
    # Tests that start processes, or may. A failure has to be confirmed by a second one.
    doubtful: Sequence[str] = ()


def copy_tree(root: Path, target: Path) -> None:
    """Copy the files that the tests need and that exist."""
    target.mkdir(parents=True)
    for name in _TREE:
        source = root / name
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target / name, ignore=ignore)
        elif source.exists():
            shutil.copy(source, target / name)


def build(tree: Path, flags: Mapping[str, str] | None = None, *arguments: str) -> bool:
    """Compile the extension in a copy. Returns whether this succeeded."""
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
    command += arguments
    env = {**os.environ, "CFLAGS": "-O1 -g0", "EQX_FASTJIT_REQUIRE_NATIVE": "1"}
    env |= flags or {}
    env.pop("PYTHONPATH", None)  # it may contain another setuptools
    out = subprocess.run(command, cwd=tree, env=env, capture_output=True)
    return out.returncode == 0


class Trees:
    """Copies of the tree, one for each mutant that runs at the same time."""

    def __init__(self, folder: Path, n: int):
        self.all = [folder / str(i) for i in range(n)]
        self.free: queue.Queue[Path] = queue.Queue()
        for tree in self.all:
            copy_tree(ROOT, tree)
            if not build(tree):
                raise SystemExit("the extension cannot be built")
            self.free.put(tree)

    def use(self, do: Callable[[Path], Any]) -> Any:
        """Call a function with a copy that is not in use."""
        tree = self.free.get()
        try:
            return do(tree)
        finally:
            self.free.put(tree)


class Tested(NamedTuple):
    """The result of a test run."""

    # Exit code of pytest, or `None` if it exceeded the limit.
    code: int | None
    # The tests that failed, as far as pytest's output names them.
    failed: tuple[str, ...]
    seconds: float


def limit_of(seconds: float) -> float:
    """The limit for tests that take this long without a mutant."""
    return _PATIENCE * seconds + _LEAST


def run_tests(
    tree: Path,
    tests: Sequence[str],
    limit: float,
    *,
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = ("-x",),
) -> Tested:
    """Run tests in a copy of the tree.

    **Arguments:**

    - `tree`: the copy.
    - `tests`: arguments for pytest.
    - `limit`: seconds after which they are ended.
    - `env`: added to the environment.
    - `options`: options of pytest. By default, it stops at the first failure.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--no-header", "-ra"]
    command += ["-p", "tests.mutation._plugin", "-p", "no:cacheprovider"]
    # The copy's own plugin comes first, if the copy has tests.
    path = os.pathsep.join([str(tree), str(ROOT)])
    own = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    start = time.monotonic()
    # In a process group, since tests start processes.
    with subprocess.Popen(
        [*command, *options, *tests],
        cwd=tree,
        env={**os.environ, **own, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            code, output = None, ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    failed = [
        line.split(" ", 1)[1].split(" - ")[0]
        for line in output.splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    ]
    return Tested(code, tuple(failed), time.monotonic() - start)


def run_chosen(tree: Path, choice: Choice) -> Tested:
    """Run the chosen tests in their order."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(choice.tests, file)
        file.flush()
        env = {"MUTATION_CHOSEN": file.name}
        return run_tests(tree, choice.files, choice.limit, env=env)


def run_mutant(tree: Path, mutant: Mutant, choice: Choice) -> Outcome:
    """Apply a mutant, run the tests, and restore the source."""
    path = tree / mutant.file
    source = path.read_text(encoding="utf-8")
    is_c = path.suffix in C_SUFFIXES
    if is_c:
        from ._c import mutate_c

        mutated = mutate_c(source, mutant)
    else:
        mutated = mutate_python(source, mutant)
    lines = changed_lines(source, mutated)
    start = time.monotonic()
    if not is_c and not _is_python(mutated):
        return Outcome(INVALID, 0.0, *lines)
    try:
        path.write_text(mutated, encoding="utf-8")
        if is_c and not build(tree):
            return Outcome(INVALID, time.monotonic() - start, *lines)
        tested = run_chosen(tree, choice)
        outcome = _outcome(tested)
        if outcome == KILLED and set(tested.failed) & set(choice.doubtful):
            # The failure may be due to a process that was too slow, not to the mutant.
            again = run_tests(tree, tested.failed, choice.limit)
            outcome = UNCLEAR if again.code == 0 else KILLED
    finally:
        path.write_text(source, encoding="utf-8")
    if outcome == TIMEOUT:
        # The timeout may be due to a slow machine, not to the mutant.
        if is_c and not build(tree):
            raise RuntimeError("the extension cannot be built")
        again = run_chosen(tree, choice)
        if again.code != 0 or again.seconds > choice.limit / 2:
            outcome = UNCLEAR
    seconds = time.monotonic() - start
    return Outcome(outcome, seconds, *lines, (tested.failed or ("",))[0])


def _is_python(source: str) -> bool:
    """Whether it compiles: cosmic-ray may mutate the `*` before keyword parameters."""
    try:
        compile(source, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def _outcome(tested: Tested) -> str:
    # Exit code 0 means that nothing was noticed, and 5 that no test was selected. Any
    # other is a failed test, a failed import or a crash. Nothing here kills the tests
    # before the limit, but the system does if it runs out of memory.
    if tested.code in (0, 5):
        return SURVIVED
    if tested.code is None:
        return TIMEOUT
    return UNCLEAR if tested.code == -signal.SIGKILL else KILLED
