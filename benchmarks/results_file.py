"""The results file: what is in it, and where it comes from.

It is JSON, with:

- `date` (UTC), `command`, and `commit` of the checkout, with `+` at the end if its
  package or benchmarks had uncommitted changes;
- `machine`, `device`, `versions`, `engine`;
- `cases`: for each case `name`, `group`, `title`, and `times`, which has one
  number a round for each mode and contender (see `timing.measure`); or `instructions`,
  a number for each contender. Other commands have `programs` (see `collect`),
  `instructions` alone or a `report` instead;
- `problems`: a line for each case that could not be timed; `interrupted`;
- `busy`: a sentence, if the machine did something else at the same time.
"""

import contextlib
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import eqx_fastjit


ROOT = Path(__file__).parent.parent
_PACKAGES = ("jax", "jaxlib", "equinox", "numpy", "optax", "diffrax")

Results = dict[str, Any]


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """A description of this machine."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "architecture": platform.machine(),
    }


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that matter."""
    out = {"eqx_fastjit": eqx_fastjit.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            out[package] = version(package)
    return out


def commit() -> str:
    """The commit of this checkout; `"unknown"` if there is no git.

    `EQX_FASTJIT_COMMIT` overrides it, where a copy without git is timed.
    """

    def git(*args: str) -> str:
        command = ["git", *args]
        run = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        )
        return run.stdout.strip()

    override = os.environ.get("EQX_FASTJIT_COMMIT")
    if override:
        return override

    code = ("eqx_fastjit", "benchmarks/*.py", "benchmarks/**/*.py")
    try:
        head = git("rev-parse", "HEAD")
        changes = git("status", "--porcelain", "--", *code)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}+" if changes else head


def busy() -> str:
    """A sentence, if this machine has more to do than its cores can; else nothing."""
    if not hasattr(os, "getloadavg"):  # on Windows
        return ""
    load, _, _ = os.getloadavg()
    cores = os.cpu_count() or 1
    if load <= 1.5 * cores:
        return ""
    return f"This machine is busy (load {load:.0f}, {cores} cores): trust no result."


def new_results(module: str) -> Results:
    """Results without any cases yet, of the module that this process runs.

    JAX's devices are used for the first time here: the command has chosen one.
    """
    import jax

    device = jax.devices()[0]
    command = ["python", "-m", module, *sys.argv[1:]]
    flags = os.environ.get("XLA_FLAGS", "").strip()
    if flags:
        command.insert(0, f"XLA_FLAGS={flags}")

    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(command),
        "commit": commit(),
        "machine": machine(),
        "device": {"platform": device.platform, "kind": device.device_kind},
        "versions": versions(),
        "engine": eqx_fastjit.engine(),
        "busy": busy(),
        "interrupted": False,
        "problems": [],
        "cases": [],
    }


def collect(
    module: str,
    names: list[str],
    measure: Callable[[str], dict[str, Any]],
    file: Path | None,
    markdown: Callable[[Results], str],
) -> int:
    """Measure programs, write the results after each, and print their table.

    **Arguments:**

    - `module`: the one that this process runs.
    - `names`: the programs.
    - `measure`: gives the entry of one. If it fails, the others are still measured.
    - `file`: where the results are written, if anywhere.
    - `markdown`: gives the table of results with a program at least.

    **Returns:** the exit code: 1 if a program could not be measured.
    """
    results = {**new_results(module), "programs": []}
    del results["cases"]

    for name in names:
        print(name, file=sys.stderr, flush=True)
        try:
            results["programs"].append(measure(name))
        except Exception as e:
            results["problems"].append(f"{name}: {e}")
            print(results["problems"][-1], file=sys.stderr)
        if file:
            file.write_text(json.dumps(results, indent=1) + "\n")

    if results["programs"]:
        print(markdown(results))
    if results["busy"]:
        print(results["busy"], file=sys.stderr)
    return 1 if results["problems"] else 0


def describe(results: Results) -> str:
    """Machine, device, versions and commit, in words."""
    machine = results["machine"]
    versions = [f"{name} {version}" for name, version in results["versions"].items()]
    commit = results["commit"].removesuffix("+")[:12]
    if results["commit"].endswith("+"):
        commit += "+"
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}; "
        f"on {results['device']['kind']}; {', '.join(versions)}; "
        f"{results['engine']} engine; commit {commit}"
    )


def dumps(results: Results) -> str:
    """The text of a file with `cases`: a line for each, floats of four digits."""
    text = json.dumps(results)
    rounded = json.loads(text, parse_float=lambda x: float(f"{float(x):.4g}"))

    cases = ",\n  ".join(map(json.dumps, rounded.pop("cases")))
    head = json.dumps(rounded, indent=1).removesuffix("\n}")
    return f'{head},\n "cases": [\n  {cases}\n ]\n}}\n'
