"""Running the tests with a mutant in place, in a copy of the tree."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ._areas import C_SUFFIXES, ROOT
from ._mutants import changed_lines, Mutant, mutate_python


# What the tests need of the tree.
_TREE = (
    *("eqx_fastjit", "tests", "examples", "scripts", "benchmarks", "docs"),
    *("setup.py", "pyproject.toml", "noxfile.py", "README.md", "CONTRIBUTING.md"),
    *("LICENSE", "MANIFEST.in", "mkdocs.yml", "CHANGELOG.md"),
)
# A mutant may loop for ever: so many times what the tests take without one, seconds.
_PATIENCE = 3
_LEAST = 30.0

KILLED, TIMEOUT, SURVIVED = "killed", "timeout", "survived"
# Does not compile; and the machine was too slow or out of memory, or a test that has
# noticed fails without the mutant as well.
INVALID, UNCLEAR = "invalid", "unclear"


class Outcome(NamedTuple):
    """What became of a mutant."""

    # `KILLED`, `TIMEOUT` (noticed as well), `SURVIVED`, `INVALID` or `UNCLEAR`.
    outcome: str
    seconds: float
    # The lines that differ.
    before: str
    after: str
    # The test that noticed, if that is known.
    test: str = ""


class Choice(NamedTuple):
    """The tests that a mutant is shown to."""

    # Arguments for pytest: test files.
    files: Sequence[str]
    # In this order.
    tests: Sequence[str]
    # Seconds after which they are ended.
    limit: float
    # Those that start processes, or may: they have to fail twice.
    doubtful: Sequence[str] = ()


def copy_tree(root: Path, target: Path) -> None:
    """Copy what the tests need; what is not there is left out."""
    target.mkdir(parents=True)
    for name in _TREE:
        source = root / name
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target / name, ignore=ignore)
        elif source.exists():
            shutil.copy(source, target / name)


def build(tree: Path, flags: Mapping[str, str] | None = None, *arguments: str) -> bool:
    """Compile the extension in a copy; whether that went well."""
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
    command += arguments
    env = {**os.environ, "CFLAGS": "-O1 -g0", "EQX_FASTJIT_REQUIRE_NATIVE": "1"}
    env |= flags or {}
    env.pop("PYTHONPATH", None)  # may have another setuptools
    out = subprocess.run(command, cwd=tree, env=env, capture_output=True)
    return out.returncode == 0


class Tested(NamedTuple):
    """What became of tests."""

    # Pytest's exit code; `None` if they ran past the limit.
    code: int | None
    # Those that failed, as far as it says so.
    failed: tuple[str, ...]
    seconds: float


def limit_of(seconds: float) -> float:
    """How long tests may take with a mutant that take so long without."""
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
    - `options`: for pytest; they end with the first that fails unless told otherwise.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--no-header", "-ra"]
    command += ["-p", "tests.mutation._plugin", "-p", "no:cacheprovider"]
    # The plugin is the copy's own where that has tests.
    path = os.pathsep.join([str(tree), str(ROOT)])
    own = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    start = time.monotonic()
    # In a group of its own: tests start processes.
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
    """Run chosen tests, in their order."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(choice.tests, file)
        file.flush()
        env = {"MUTATION_CHOSEN": file.name}
        return run_tests(tree, choice.files, choice.limit, env=env)


def run_mutant(tree: Path, mutant: Mutant, choice: Choice) -> Outcome:
    """Put a mutant in, run the tests, and put the source back."""
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
            # Was it the mutant, or has a process not been ready in time?
            again = run_tests(tree, tested.failed, choice.limit)
            outcome = UNCLEAR if again.code == 0 else KILLED
    finally:
        path.write_text(source, encoding="utf-8")
    if outcome == TIMEOUT:
        # Was it the mutant, or is the machine this slow just now?
        if is_c and not build(tree):
            raise RuntimeError("the extension cannot be built")
        again = run_chosen(tree, choice)
        if again.code != 0 or again.seconds > choice.limit / 2:
            outcome = UNCLEAR
    seconds = time.monotonic() - start
    return Outcome(outcome, seconds, *lines, (tested.failed or ("",))[0])


def _is_python(source: str) -> bool:
    """Cosmic-ray takes the `*` of keyword-only parameters for an operator."""
    try:
        compile(source, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def _outcome(tested: Tested) -> str:
    # Of pytest's exit codes 0 alone says that nothing was noticed: with others it has
    # failed to import a module, or has crashed; and 5 that no test was chosen. Nothing
    # here kills a test before its time, but the system does if memory runs out.
    if tested.code in (0, 5):
        return SURVIVED
    if tested.code is None:
        return TIMEOUT
    return UNCLEAR if tested.code == -signal.SIGKILL else KILLED
