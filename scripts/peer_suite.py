"""Run another project's tests with and without `eqx_fastjit.install()`.

    python scripts/peer_suite.py CHECKOUT [--tests tests] [--only FILE] [--json RESULTS]
                                 [PYTEST_ARGS...]

Runs the suite twice in fresh processes, from a copy in a temporary folder, and prints
which tests end differently. `--json` also puts the counts into a file, in the place of
the last ones for the same command. Exit code: 0 if none differs, 1 if any, 2 if there
are no tests or pytest cannot run them.

Libraries other than Equinox that decorate with `eqx.filter_jit`, at the tags of the
installed versions (their tests also want `beartype` and `scipy`):

    git clone --branch v0.7.2 https://github.com/patrick-kidger/diffrax
    python scripts/peer_suite.py diffrax --tests test --only test_vmap.py
    git clone --branch v0.1.0 https://github.com/patrick-kidger/optimistix
    python scripts/peer_suite.py optimistix --only test_solve.py -o addopts=
    git clone --branch v0.1.1 https://github.com/patrick-kidger/lineax
    python scripts/peer_suite.py lineax --only test_singular.py
"""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime, UTC
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


ROOT = Path(__file__).parent.parent
if __name__ == "__main__":
    # to import `benchmarks`, which is not installed
    sys.path.append(str(ROOT))

from benchmarks.results_file import machine  # noqa: E402


# Loaded by pytest with `-p`.
_PLUGIN = """
import json, os

_outcomes = {}

def pytest_configure():
    # Imported late, because jaxtyping's plugin instruments a library on import.
    if os.environ["PEER_INSTALL"] == "1":
        import eqx_fastjit
        eqx_fastjit.install()

def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid] = report.outcome

def pytest_sessionfinish(session):
    with open(os.environ["PEER_RESULTS"], "w") as f:
        json.dump(_outcomes, f)
"""


def run(folder: Path, target: str, install: bool, args: list[str]) -> dict[str, str]:
    results = folder / f"results-{int(install)}.json"
    env = dict(
        os.environ,
        PEER_INSTALL=str(int(install)),
        PEER_RESULTS=str(results),
        PYTHONPATH=os.pathsep.join(
            [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    )
    command = [sys.executable, "-m", "pytest", "-p", "peer_plugin", "-q", target, *args]
    print(f"--- {'with' if install else 'without'} install()", flush=True)
    returned = subprocess.run(command, cwd=folder / "suite", env=env).returncode
    if not results.exists():
        print(f"pytest ended with {returned}, before it ran a test", file=sys.stderr)
        sys.exit(2)
    return json.loads(results.read_text())


def count(outcomes: dict[str, str]) -> dict[str, int]:
    return {o: list(outcomes.values()).count(o) for o in sorted(set(outcomes.values()))}


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    root = Path(__file__).parent.parent
    return subprocess.run(
        command, cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()


def record(path: Path, entry: dict[str, object], library: str) -> None:
    """Add an entry, in place of the last one for the same command."""
    versions = {"python": sys.version.split()[0]}
    for name in ("jax", "equinox", library):
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    now = datetime.now(UTC).isoformat(timespec="minutes")
    entry |= {"machine": machine(), "versions": versions, "commit": commit()}
    entry["date"] = now
    known = json.loads(path.read_text()) if path.exists() else []
    entries = [e for e in known if e["command"] != entry["command"]] + [entry]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(entries, indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument(
        "--tests", default="tests", help="folder of the tests in the checkout"
    )
    parser.add_argument("--only", default="", help="run one file of that folder")
    parser.add_argument("--json", type=Path, help="write the counts here")
    options, args = parser.parse_known_args()
    target = str(Path(options.tests) / options.only)
    if not (options.checkout / options.tests).is_dir():
        print(f"{options.checkout} has no folder {options.tests!r}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "peer_plugin.py").write_text(_PLUGIN)
        # Copy the tests only; the library is the installed one.
        shutil.copytree(
            options.checkout / options.tests, folder / "suite" / options.tests
        )
        for config in ("pyproject.toml", "pytest.ini", "setup.cfg", "tox.ini"):
            if (options.checkout / config).exists():
                shutil.copy(options.checkout / config, folder / "suite")
        without = run(folder, target, False, args)
        with_ours = run(folder, target, True, args)
    different = sorted(
        test
        for test in without.keys() | with_ours.keys()
        if without.get(test) != with_ours.get(test)
    )
    for outcomes, label in ((without, "without install()"), (with_ours, "with")):
        print(f"{label}: {count(outcomes)}")
    for test in different:
        print(f"{test}: {without.get(test)} without, {with_ours.get(test)} with")
    print(f"{len(different)} of {len(without)} tests end differently")
    if options.json is not None:
        library = options.checkout.resolve().name
        words = ["peer_suite.py", library, "--tests", options.tests]
        words += ["--only", options.only] if options.only else []
        entry = {
            "command": shlex.join([*words, *args]),
            "without": count(without),
            "with": count(with_ours),
            "different": different,
        }
        record(options.json, entry, library)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
