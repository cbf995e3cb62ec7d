"""Tests that need a build or an environment of their own: versions, sanitizers.

    nox -s corners     # two combinations of the matrix, far apart, which CI runs
    nox -s matrix      # every combination
    nox -s next        # the newest pre-releases of JAX and Equinox
    nox -s nogil       # tests of the C extension on a Python without the GIL
    nox -s asan        # the C extension under AddressSanitizer and UBSan
    nox -s instructions    # calls over a rival take no more than in benchmarks/results

After `--`, the last takes names of cases, and the others arguments for pytest. Tests of
the engine are selected by folder, so that no list leaves out a new file. `asan` uses
the environment that it is started in. The others need uv and the interpreters, which
are on PATH or of pyenv.
"""

import json
import os
import shutil
from pathlib import Path

import nox


nox.needs_version = ">=2025.10.14"
nox.options.default_venv_backend = "uv"
nox.options.sessions = ["corners"]
# An interpreter that is missing is reported as skipped, not downloaded.
nox.options.download_python = "never"

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
JAX = {"oldest": "jax==0.7.2", "0.9": "jax==0.9.*", "newest": "jax"}
EQUINOX = {"oldest": "equinox==0.13.2", "newest": "equinox"}
MATRIX = [(p, jax, equinox) for p in PYTHONS for jax in JAX for equinox in EQUINOX]
# CI also tests Python 3.11 with the newest version of everything.
CORNERS = [("3.11", "oldest", "oldest"), ("3.13", "newest", "newest")]

# What could depend on a version, and what runs the C extension.
ENGINE = ["tests/engine", "tests/native", "tests/differential"]
# Fewer, for `corners`: calls are compared with Equinox's, also with private names gone.
CORPUS = ["tests/engine/test_corpus.py", "tests/engine/test_private_names.py"]

# nox and uv look for interpreters on PATH alone: those of pyenv go last.
_PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
for _folder in sorted((_PYENV / "versions").glob("3.1*/bin")):
    os.environ["PATH"] += f"{os.pathsep}{_folder}"


# --- versions -------------------------------------------------------------------------


def _test_versions(
    session: nox.Session, jax: str, equinox: str, tests: list[str], *options: str
) -> None:
    """Install one combination, and run tests there."""
    session.install(*options, JAX[jax], EQUINOX[equinox], "--group", "engine")
    # Afterwards: ours must not choose the versions, only agree to them. Editable, since
    # the processes that tests start import the checkout, which has to have `_native`.
    session.install("--no-deps", "-e", ".", env={"EQX_FASTJIT_REQUIRE_NATIVE": "1"})
    session.run("uv", "pip", "check", external=True, silent=True)
    session.run("eqx-fastjit", "--version")
    session.run(
        *("python", "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *(session.posargs or tests),
        env={"PYTHONPATH": None, "EQX_FASTJIT_ENGINE": None},
    )


@nox.session
@nox.parametrize(("python", "jax", "equinox"), MATRIX)
def matrix(session: nox.Session, jax: str, equinox: str) -> None:
    """The engine's tests under one combination."""
    _test_versions(session, jax, equinox, ENGINE)


@nox.session
@nox.parametrize(("python", "jax", "equinox"), CORNERS)
def corners(session: nox.Session, jax: str, equinox: str) -> None:
    """Two combinations far apart, with fewer tests."""
    _test_versions(session, jax, equinox, CORPUS)


@nox.session(name="next", python="3.13")
def next_versions(session: nox.Session) -> None:
    """The engine's tests under pre-releases, where there are any."""
    _test_versions(session, "newest", "newest", ENGINE, "--prerelease=allow")


@nox.session(python=["3.13t", "3.14t"])
def nogil(session: nox.Session) -> None:
    """The C extension without the GIL, which nothing may turn on again."""
    packages = ("attrs", "cloudpickle", "hypothesis", "optax", "pytest", "pytest-xdist")
    # Other packages of the tests have no wheels there.
    session.install("--only-binary", ":all:", "jax", "equinox", "setuptools", *packages)
    session.install("--no-deps", "--no-build-isolation", "-e", ".")

    env = {"EQX_FASTJIT_ENGINE": "native", "PYTHON_GIL": "0"}
    enabled = "import sys, eqx_fastjit; eqx_fastjit.engine(); "
    enabled += "assert not sys._is_gil_enabled()"
    session.run("python", "-W", "error", "-c", enabled, env={"PYTHON_GIL": None})
    tests = session.posargs or ["tests/native", "tests/engine/test_threads.py"]
    session.run("python", "-m", "pytest", "-q", "-n", "0", *tests, env=env)


@nox.session(python="3.11")
def instructions(session: nox.Session) -> None:
    """Instructions of calls, under the JAX, Equinox and Optax of the results file."""
    file = Path("benchmarks/results/instructions.json")
    versions = json.loads(file.read_text())["versions"]
    packages = [f"{name}=={versions[name]}" for name in ("jax", "equinox", "optax")]
    session.install(*packages, "-e", ".[bench]")

    words = ("--instructions", *session.posargs, "--against", str(file))
    session.run("python", "-m", "benchmarks", *words)


# --- sanitizers -----------------------------------------------------------------------

# Debugging information is for the lines in reports.
_SANITIZE = "-g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined "
_SANITIZE += "-fno-sanitize-recover=undefined"


@nox.session(venv_backend="none")
def asan(session: nox.Session) -> None:
    """The engine's tests, with `_native` under AddressSanitizer and UBSan."""
    folder = Path(session.create_tmp()) / "tree"
    shutil.rmtree(folder, ignore_errors=True)
    # A copy of the source, in which nothing was built without sanitizers. It is in
    # .nox, which is left out itself, with all that begins with a dot.
    ignore = shutil.ignore_patterns("__pycache__", "*.so", ".*", "site", "results")
    shutil.copytree(Path(__file__).parent, folder, ignore=ignore)

    compiler = os.environ.get("CC", "gcc")
    libraries = []
    for name in ("libasan", "libstdc++"):
        path = session.run(compiler, f"-print-file-name={name}.so", silent=True)
        libraries.append(str(path).strip())

    build: dict[str, str] = dict.fromkeys(("CFLAGS", "LDFLAGS"), _SANITIZE)
    env = {
        # Python itself is not sanitized, so the library has to be there first; and
        # without libstdc++ it would not find `throw`, which jaxlib loads later.
        "LD_PRELOAD": " ".join(libraries),
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
        tests = session.posargs or ENGINE
        # `-s`, as the sanitizers write to stderr before they end the process.
        session.run("python", "-m", "pytest", "-q", "-n", "0", "-s", *tests, env=env)
