"""Runs the tests under every supported combination of Python, JAX and Equinox.

    nox -s matrix      # every combination; writes benchmarks/results/matrix.json
    nox -s corners     # the two that CI runs
    nox -s matrix -- tests/test_corpus.py    # with other arguments for pytest
    nox -s debug       # in this environment, under Python's and its allocator's checks
    nox -s sanitizers  # in this environment, the C extension under ASan and UBSan
    nox -s sanitizers -- tests/test_stages.py -k lower    # with other arguments
    nox -s mutation    # faults put in one at a time, for an hour: do tests notice?
    nox -s mutation -- --area doctor --minutes 10

Needs uv and the interpreters; those that pyenv keeps are found.
"""

import json
import os
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from datetime import datetime, UTC
from pathlib import Path

import nox


nox.needs_version = ">=2025.10.14"
nox.options.default_venv_backend = "uv"
nox.options.sessions = ["corners"]

# An interpreter that is missing is reported as skipped, not downloaded.
nox.options.download_python = "never"

ROOT = Path(__file__).parent
RESULTS = ROOT / "benchmarks" / "results" / "matrix.json"
MUTATION = RESULTS.with_name("mutation.json")

PYTHONS = ("3.11", "3.12", "3.13")
# Newest: whatever the registry has for that Python.
JAX = {"oldest": "jax==0.7.2", "0.10": "jax==0.10.*", "newest": "jax"}
EQUINOX = {"oldest": "equinox==0.13.2", "newest": "equinox"}

MATRIX = [
    (python, jax, equinox) for python in PYTHONS for jax in JAX for equinox in EQUINOX
]
# CI also tests Python 3.11 with the newest version of everything.
CORNERS = [("3.11", "oldest", "oldest"), ("3.13", "newest", "newest")]

# The engine's tests: those that could depend on a version.
TESTS = [
    f"tests/test_{name}.py"
    for name in (
        "contexts",
        "corpus",
        "fixes",
        "hostile",
        "lifetimes",
        "engines",
        "sharding",
        "stages",
    )
]
CORNER_TESTS = ["tests/test_corpus.py", "tests/test_fixes.py", "tests/test_engines.py"]

SANITIZER_TESTS = [
    f"tests/test_{name}.py"
    for name in (
        "attacks",
        "attacks_2",
        "attacks_3c",
        "attacks_4c",
        "attacks_5c",
        "attacks_6c",
        "attacks_7c",
        "attacks_8c",
        "attacks_9c",
        "attacks_11c",
        "attacks_12",
        "attacks_13",
        "attacks_14",
        "corpus",
        "differential",
        "hostile",
        "native_memory",
        "no_python",
        "static_sets",
        "nodes",
        "static_containers",
        "static_modules",
        "statics",
    )
]

# Not the extra `test`, which has a browser and a type checker in it.
REQUIREMENTS = [
    "hypothesis>=6.100",
    "optax>=0.2.3",
    "pytest>=9",
    "pytest-xdist>=3.6",
    "rich>=13",
]

# gcov comes with gcc.
MUTATION_TOOLS = ["cosmic-ray>=8.7", "coverage>=7.10", "wheel"]

_VERSIONS = """
import json, platform
from importlib.metadata import version
names = ("jax", "jaxlib", "equinox", "numpy")
out = {"python": platform.python_version()} | {name: version(name) for name in names}
import eqx_fastjit
print(json.dumps(out | {"engine": eqx_fastjit.engine()}))
"""


def _show_pyenv() -> None:
    """Put pyenv's interpreters on PATH, last: nox and uv look there alone."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for python in PYTHONS:
        for folder in sorted((root / "versions").glob(f"{python}.*/bin")):
            os.environ["PATH"] += f"{os.pathsep}{folder}"


_show_pyenv()


def _install(session: nox.Session, jax: str, equinox: str) -> dict[str, str]:
    """Install one combination; returns the versions and the engine that it takes."""
    session.install(JAX[jax], EQUINOX[equinox], *REQUIREMENTS)
    # Afterwards: ours must not choose the versions, only agree to them. Editable, since
    # the processes that tests start import the checkout, which has to have `_native`.
    session.install("--no-deps", "-e", ".", env={"EQX_FASTJIT_REQUIRE_NATIVE": "1"})
    session.run("uv", "pip", "check", external=True, silent=True)
    out = session.run("python", "-c", _VERSIONS, silent=True, log=False)
    assert isinstance(out, str)
    return json.loads(out.splitlines()[-1])


def _skip_if_repeated(session: nox.Session, jax: str, versions: dict[str, str]) -> None:
    if jax == "newest" and versions["jax"].startswith("0.10."):
        session.skip(f"the newest JAX for this Python is {versions['jax']}")


def _run_tests(session: nox.Session, tests: list[str]) -> dict[str, int]:
    """Run pytest; returns how many tests passed, failed and were skipped."""
    report = Path(session.create_tmp()) / "report.xml"
    report.unlink(missing_ok=True)
    session.run(
        "python",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
        *tests,
        env={"PYTHONPATH": None, "EQX_FASTJIT_ENGINE": None},
        success_codes=[0, 1],
    )
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "skipped")}
    failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    passed = counts["tests"] - counts["skipped"] - failed
    return {"passed": passed, "failed": failed, "skipped": counts["skipped"]}


def _commit() -> str:
    def git(*args: str) -> str:
        command = ["git", *args]
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")


def _record(entry: dict[str, object]) -> None:
    """Put an entry in the place of the last one for the same versions."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    names = ("python", "jax", "equinox")

    def key(entry: dict[str, object]) -> list[str]:
        return [str(entry[name]) for name in names]

    entries = [e for e in known if key(e) != key(entry)] + [entry]
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(sorted(entries, key=key), indent=2) + "\n")


@nox.session
@nox.parametrize(("python", "jax", "equinox"), MATRIX)
def matrix(session: nox.Session, jax: str, equinox: str) -> None:
    """The engine's tests under one combination; keeps the result."""
    versions = _install(session, jax, equinox)
    _skip_if_repeated(session, jax, versions)
    tests = session.posargs or TESTS
    counts = _run_tests(session, tests)
    now = datetime.now(UTC).isoformat(timespec="minutes")
    run = {"tests": " ".join(tests), "commit": _commit(), "date": now}
    _record({**versions, **counts, **run})
    if counts["failed"]:
        session.error(f"{counts['failed']} tests failed")


@nox.session
@nox.parametrize(("python", "jax", "equinox"), CORNERS)
def corners(session: nox.Session, jax: str, equinox: str) -> None:
    """Two combinations far apart, with fewer tests; keeps nothing."""
    session.log(str(_install(session, jax, equinox)))
    counts = _run_tests(session, session.posargs or CORNER_TESTS)
    if counts["failed"]:
        session.error(f"{counts['failed']} tests failed")


@nox.session(venv_backend="none")
def debug(session: nox.Session) -> None:
    """The engine's tests in development mode, with the debugging allocator."""
    command = ["python", "-X", "dev", "-m", "pytest", "-q", "-n", "0"]
    env = {"PYTHONMALLOC": "debug", "PYTHONFAULTHANDLER": "1"}
    session.run(*command, *(session.posargs or TESTS), env=env)


@nox.session
def mutation(session: nox.Session) -> None:
    """How many small faults the tests notice, by area; keeps the result."""
    build = {"EQX_FASTJIT_REQUIRE_NATIVE": "1"}
    session.install("-e", ".[test]", *MUTATION_TOOLS, env=build)
    # What finds the mutants can be tested here alone.
    session.run("python", "-m", "pytest", "-q", "-n", "0", "tests/test_mutation.py")
    arguments = session.posargs or ["--minutes", "60", "--json", str(MUTATION)]
    env = {"PYTHONPATH": None, "EQX_FASTJIT_ENGINE": None, "EQX_FASTJIT_SKIPS": None}
    session.run("python", "-m", "tests.mutation", *arguments, env=env)


# For the build. Debugging information is for the lines in reports.
_SANITIZE = (
    "-g -O1 -fno-omit-frame-pointer "
    "-fsanitize=address,undefined -fno-sanitize-recover=undefined"
)
_IS_SANITIZED = """
import pathlib
from eqx_fastjit import _native
assert pathlib.Path.cwd() in pathlib.Path(_native.__file__).parents, _native.__file__
assert b"__asan_" in pathlib.Path(_native.__file__).read_bytes(), _native.__file__
"""
# The files that these tests need. None of them is installed.
_SANITIZED_TREE = (
    *("eqx_fastjit", "tests", "examples", "scripts", "setup.py", "pyproject.toml"),
    *("README.md", "LICENSE", "MANIFEST.in"),
)


def _copy_tree(folder: Path) -> None:
    for name in _SANITIZED_TREE:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            # What was built without sanitizers, too.
            ignore = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(source, target, ignore=ignore)
        else:
            shutil.copy(source, target)


def _library(name: str) -> str:
    """The path of one of the compiler's libraries."""
    compiler = os.environ.get("CC", "gcc")
    command = [compiler, f"-print-file-name={name}"]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    return os.path.realpath(out.stdout.strip())


@nox.session(venv_backend="none")
def sanitizers(session: nox.Session) -> None:
    """The engine's tests, with `_native` under AddressSanitizer and UBSan."""
    folder = Path(session.create_tmp()) / "tree"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    _copy_tree(folder)
    build = {"CFLAGS": _SANITIZE, "LDFLAGS": _SANITIZE}
    build["EQX_FASTJIT_REQUIRE_NATIVE"] = "1"
    env = {
        # Python itself is not sanitized, so the library has to be there first; and
        # without libstdc++ it would not find `throw`, which jaxlib loads later.
        "LD_PRELOAD": f"{_library('libasan.so')} {_library('libstdc++.so')}",
        # Python and JAX keep much until the process ends. And Python's own allocator
        # would hide from it what is freed.
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "EQX_FASTJIT_ENGINE": "native",
        "PYTHONPATH": str(folder),
        "PYTHONFAULTHANDLER": "1",
    }
    # `-s`: pytest would keep the report of a process that is about to be aborted.
    command = ["python", "-m", "pytest", "-q", "-s", "-n", "0"]
    with session.chdir(folder):
        session.run("python", "setup.py", "-q", "build_ext", "--inplace", env=build)
        session.run("python", "-c", _IS_SANITIZED, env=env)
        session.run(*command, *(session.posargs or SANITIZER_TESTS), env=env)
