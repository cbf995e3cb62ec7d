"""Running the tests with a mutant in place, in a copy of the tree."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ._mutants import changed_lines, Mutant, mutate_python


# What the tests need of the tree.
_TREE = (
    *("eqx_fastjit", "tests", "examples", "scripts", "benchmarks", "docs"),
    *("setup.py", "pyproject.toml", "noxfile.py", "README.md", "CONTRIBUTING.md"),
    *("LICENSE", "MANIFEST.in", "mkdocs.yml", "CHANGELOG.md"),
)
# A mutant may loop for ever: so many times what the tests take without one, seconds.
_PATIENCE = 3
_LEAST = 60.0

KILLED, TIMEOUT, SURVIVED, INVALID = "killed", "timeout", "survived", "invalid"


class Outcome(NamedTuple):
    """What became of a mutant."""

    # `KILLED`, `TIMEOUT` (noticed as well), `SURVIVED`, or `INVALID`: does not compile.
    outcome: str
    seconds: float
    # The lines that differ.
    before: str
    after: str
    # The test that noticed, if that is known.
    test: str = ""


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


def build(tree: Path) -> bool:
    """Compile the extension in a copy; whether that went well."""
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
    env = {**os.environ, "CFLAGS": "-O1 -g0", "EQX_FASTJIT_REQUIRE_NATIVE": "1"}
    env.pop("PYTHONPATH", None)  # may have another setuptools
    out = subprocess.run(command, cwd=tree, env=env, capture_output=True)
    return out.returncode == 0


def run_tests(
    tree: Path, tests: Sequence[str], limit: float
) -> tuple[int | None, str, float]:
    """Run tests until the first fails.

    **Returns:** pytest's exit code, `None` if it ran past the limit; the test that
    failed, if it says so; and the seconds.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "--no-header"]
    command += ["-p", "no:cacheprovider", *tests]
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    start = time.monotonic()
    # In a group of its own: tests start processes.
    with subprocess.Popen(
        command,
        cwd=tree,
        env=env,
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
        line.split()[1]
        for line in output.splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    ]
    return code, (failed or [""])[0], time.monotonic() - start


def limit_of(seconds: float) -> float:
    """How long tests may take with a mutant that take so long without."""
    return _PATIENCE * seconds + _LEAST


def run_mutant(
    tree: Path, mutant: Mutant, tests: Sequence[str], limit: float
) -> Outcome:
    """Put a mutant in, run the tests, and put the source back."""
    path = tree / mutant.file
    source = path.read_text(encoding="utf-8")
    is_c = path.suffix == ".c"
    if is_c:
        from ._c import mutate_c

        mutated = mutate_c(source, mutant)
    else:
        mutated = mutate_python(source, mutant)
    lines = changed_lines(source, mutated)
    start = time.monotonic()
    try:
        path.write_text(mutated, encoding="utf-8")
        if is_c and not build(tree):
            return Outcome(INVALID, time.monotonic() - start, *lines)
        code, test, _ = run_tests(tree, tests, limit)
    finally:
        path.write_text(source, encoding="utf-8")
    # Of pytest's exit codes 0 alone says that nothing was noticed: with others it has
    # failed to import a module, or has crashed.
    outcome = SURVIVED if code == 0 else TIMEOUT if code is None else KILLED
    return Outcome(outcome, time.monotonic() - start, *lines, test)
