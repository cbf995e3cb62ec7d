"""Runs that are too long for each change: versions, sanitizers, threads.

    nox -s tests -- tests/engine    # a folder, in this environment; all without it
    nox -s corners     # the two ends of the version matrix, which CI runs
    nox -s matrix      # every combination; writes benchmarks/results/matrix.json
    nox -s asan        # the C extension under AddressSanitizer and UBSan
    nox -s debug       # CPython's own checks, and its debugging allocator
    nox -s threads     # 16 threads for a minute
    nox -s asv         # the benchmarks' suite, one round each
    nox -s gpu         # benchmarks/gpu.sh, dry-run on the CPU

All take other arguments for pytest after `--`. Tests are selected by folder, so that
none is left out by a list. Needs uv and the interpreters; those of pyenv are found.
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

PYTHONS = ("3.11", "3.12", "3.13")
# Newest: whatever the registry has for that Python.
JAX = {"oldest": "jax==0.7.2", "0.10": "jax==0.10.*", "newest": "jax"}
EQUINOX = {"oldest": "equinox==0.13.2", "newest": "equinox"}

MATRIX = [
    (python, jax, equinox) for python in PYTHONS for jax in JAX for equinox in EQUINOX
]
# CI also tests Python 3.11 with the newest version of everything.
CORNERS = [("3.11", "oldest", "oldest"), ("3.13", "newest", "newest")]

# What could depend on a version, and what runs the C extension.
ENGINE = ["tests/engine", "tests/native", "tests/differential"]
# A small corner of that, for `corners`: the same calls as with Equinox.
CORPUS = ["tests/engine/test_corpus.py"]

# What those tests import; not the extra `test`, which has a browser in it.
REQUIREMENTS = [
    *("attrs", "cloudpickle", "hypothesis>=6.100", "msgspec", "optax>=0.2.3"),
    *("pydantic>=2.7", "pytest>=9", "pytest-xdist>=3.6", "wrapt"),
]

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


# --- versions -------------------------------------------------------------------------


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


def _run_tests(session: nox.Session, tests: list[str]) -> dict[str, int]:
    """Run pytest; returns how many tests passed, failed and were skipped."""
    report = Path(session.create_tmp()) / "report.xml"
    report.unlink(missing_ok=True)
    session.run(
        *("python", "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *(f"--junitxml={report}", *tests),
        env={"PYTHONPATH": None, "EQX_FASTJIT_ENGINE": None},
        success_codes=[0, 1],
    )
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    total, skipped, failures, errors = (
        int(suite.get(name, 0)) for name in ("tests", "skipped", "failures", "errors")
    )
    failed = failures + errors
    return {"passed": total - skipped - failed, "failed": failed, "skipped": skipped}


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

    def key(entry: dict[str, object]) -> list[str]:
        return [str(entry[name]) for name in ("python", "jax", "equinox")]

    entries = [e for e in known if key(e) != key(entry)] + [entry]
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(sorted(entries, key=key), indent=2) + "\n")


@nox.session
@nox.parametrize(("python", "jax", "equinox"), MATRIX)
def matrix(session: nox.Session, jax: str, equinox: str) -> None:
    """The engine's tests under one combination; keeps the result."""
    versions = _install(session, jax, equinox)
    if jax == "newest" and versions["jax"].startswith("0.10."):
        session.skip(f"the newest JAX for this Python is {versions['jax']}")
    tests = session.posargs or ENGINE
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
    counts = _run_tests(session, session.posargs or CORPUS)
    if counts["failed"]:
        session.error(f"{counts['failed']} tests failed")


# --- in this environment --------------------------------------------------------------


def _pytest(session: nox.Session, default: list[str], **env: str) -> None:
    """Run pytest in one process."""
    command = ("python", "-X", "faulthandler", "-m", "pytest", "-q", "-n", "0", "-s")
    session.run(*command, *(session.posargs or default), env=env)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """A folder of tests, or all."""
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session(venv_backend="none")
def debug(session: nox.Session) -> None:
    """The engine's tests in development mode, with the debugging allocator."""
    _pytest(session, ENGINE, PYTHONDEVMODE="1", PYTHONMALLOC="debug")


@nox.session(venv_backend="none")
def threads(session: nox.Session) -> None:
    """16 threads that call, clear and change statics, for a minute."""
    _pytest(session, ["tests/native/test_threads.py"], EQX_FASTJIT_SECONDS="60")


@nox.session(venv_backend="none")
def asv(session: nox.Session) -> None:
    """Each benchmark of the suite once, in this environment."""
    session.run("asv", "machine", "--yes")
    arguments = session.posargs or ["--quick", "--show-stderr"]
    session.run("asv", "run", "--python=same", *arguments)


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """The script for a machine with a GPU, on the CPU of this one."""
    _pytest(session, ["tests/benchmarks/test_gpu_script.py"])


# --- sanitizers -----------------------------------------------------------------------

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


def _library(name: str) -> str:
    """The path of one of the compiler's libraries."""
    command = [os.environ.get("CC", "gcc"), f"-print-file-name={name}"]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    return os.path.realpath(out.stdout.strip())


@nox.session(venv_backend="none")
def asan(session: nox.Session) -> None:
    """The engine's tests, with `_native` under AddressSanitizer and UBSan."""
    folder = Path(session.create_tmp()) / "tree"
    shutil.rmtree(folder, ignore_errors=True)
    # Without what was built without sanitizers. `create_tmp` is in .nox.
    ignore = shutil.ignore_patterns("__pycache__", "*.so", ".*", "site", "results")
    shutil.copytree(ROOT, folder, ignore=ignore)
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
    }
    with session.chdir(folder):
        session.run("python", "setup.py", "-q", "build_ext", "--inplace", env=build)
        session.run("python", "-c", _IS_SANITIZED, env=env)
        _pytest(session, ENGINE, **env)
