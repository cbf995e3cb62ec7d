"""The results file: what is in it, and figures from it.

It is JSON:

- `schema`: a number, raised when the meaning of anything below changes;
- `date` (UTC), `command`, `commit` of the checkout that ran (absent where there is
  none; `+` at the end where it had changes), `interrupted`;
- `machine`: `cpu`, `cores`, `system`, `architecture`;
- `versions`: of Python and of packages;
- `engine`: how calls of ours were dispatched;
- `problems`: lines on what could not be timed;
- `cases`: for each case and device what `Case` says, and `times`: for each mode and
  contender one number per round, in `unit`. Round by round the contenders saw the same
  machine, so ratios are taken within rounds.
"""

import contextlib
import datetime
import json
import os
import platform
import statistics
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import eqx_fastjit

from ._case import CONTENDERS


SCHEMA = 1

Results = dict[str, Any]
Entry = dict[str, Any]

_PACKAGES = ("jax", "jaxlib", "equinox", "numpy", "optax", "flax")


class BadResults(Exception):
    """A file that is not a results file of `eqx-fastjit bench`."""


class Spread(NamedTuple):
    """Median and quartiles."""

    low: float
    median: float
    high: float


def spread(values: list[float]) -> Spread:
    """Median and quartiles of at least one value."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(low, median, high)


def ratio(entry: Entry, mode: str, rival: str) -> Spread | None:
    """Ours over a rival's, computed in each round; `None` if there is none."""
    times = entry["times"].get(mode, {})
    if "ours" not in times or rival not in times or 0 in times[rival]:
        return None
    pairs = zip(times["ours"], times[rival], strict=True)
    return spread([a / b for a, b in pairs])


def ratios(entry: Entry, mode: str) -> dict[str, Spread]:
    """Ours over each rival to which there is a ratio, in the order of contenders."""
    rivals = [c for c in CONTENDERS if c != "ours"]
    found = {rival: ratio(entry, mode, rival) for rival in rivals}
    return {rival: value for rival, value in found.items() if value is not None}


def indistinct(ratio: Spread) -> bool:
    """Whether rounds disagree on which is faster: 1 is between the quartiles."""
    return ratio.low <= 1 <= ratio.high


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """The machine that this runs on."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "architecture": platform.machine(),
    }


def _versions() -> dict[str, str]:
    versions = {
        "eqx_fastjit": eqx_fastjit.__version__,
        "python": platform.python_version(),
    }
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def _commit() -> str | None:
    """The commit of the checkout that the package is in."""
    package = Path(eqx_fastjit.__file__).parent

    def git(*args: str) -> str:
        run = subprocess.run(
            ["git", *args], cwd=package, capture_output=True, text=True, check=True
        )
        return run.stdout.strip()

    try:
        # An installed package may lie in somebody else's checkout.
        git("ls-files", "--error-unmatch", "__init__.py")
        changed = git("status", "--porcelain", "--untracked-files=no", ".")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def new_results(command: str, engine: str) -> Results:
    """Results without a case as yet."""
    commit = _commit()
    return {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "machine": machine(),
        "versions": _versions(),
        "engine": engine,
        "interrupted": False,
        "problems": [],
        "cases": [],
        **({} if commit is None else {"commit": commit}),
    }


def describe_machine(machine: dict[str, Any]) -> str:
    """What `machine` says, in words."""
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}"


def describe_devices(results: Results) -> list[str]:
    """The devices that cases ran on, in words."""
    return sorted({f"{e['device']} ({e['device_kind']})" for e in results["cases"]})


def describe_versions(results: Results) -> str:
    """The versions of Python and of packages in a line."""
    return ", ".join(f"{name} {number}" for name, number in results["versions"].items())


def short_commit(commit: str) -> str:
    """Twelve digits, and `+` where there were changes."""
    return commit[:12] + "+" * commit.endswith("+")


def describe(results: Results) -> str:
    """Machine, versions and commit in a line or two."""
    parts = [
        describe_machine(results["machine"]),
        *describe_devices(results),
        describe_versions(results),
        f"{results['engine']} engine",
    ]
    if "commit" in results:
        parts.append(f"commit {short_commit(results['commit'])}")
    return "; ".join(parts)


def even(entry: Entry) -> Entry:
    """The entry without its last round, if some contenders have not finished it."""
    lists = [v for by in entry["times"].values() for v in by.values()]
    rounds = min(map(len, lists), default=0)
    times = {
        mode: {name: values[:rounds] for name, values in by.items()}
        for mode, by in entry["times"].items()
    }
    return entry | {"times": times if rounds else {}}


def _lines(x: Any, indent: str = "") -> str:
    """JSON with a line for each list of numbers."""
    inner = indent + " "
    if isinstance(x, dict) and x:
        items = [f"{json.dumps(k)}: {_lines(v, inner)}" for k, v in x.items()]
        return "{\n" + inner + f",\n{inner}".join(items) + "\n" + indent + "}"
    if isinstance(x, list) and any(isinstance(v, dict | str) for v in x):
        items = [_lines(v, inner) for v in x]
        return "[\n" + inner + f",\n{inner}".join(items) + "\n" + indent + "]"
    return json.dumps(x)


def dumps(results: Results) -> str:
    """The text of a results file, whose figures have four digits to keep it small."""
    text = json.dumps(results)
    rounded = json.loads(text, parse_float=lambda x: float(f"{float(x):.4g}"))
    return _lines(rounded) + "\n"


def load(path: str | Path) -> Results:
    """Read a results file. Raises `BadResults` in one line that names the file."""
    try:
        results = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as e:
        raise BadResults(f"cannot read {path}: {e.strerror}") from None
    except ValueError as e:
        raise BadResults(f"{path} is not JSON: {e}") from None
    if not isinstance(results, dict) or "schema" not in results:
        raise BadResults(f"{path} is not a results file: it has no 'schema'")
    if results["schema"] != SCHEMA:
        raise BadResults(
            f"{path} has schema {results['schema']!r}; this version reads {SCHEMA}"
        )
    try:
        _check(results)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise BadResults(
            f"{path} is not a complete results file: {type(e).__name__}: {e}"
        ) from None
    return results


def _check(results: Results) -> None:
    describe(results)
    for key in ("date", "command", "problems", "interrupted"):
        results[key]
    for entry in results["cases"]:
        for key in ("name", "group", "title", "unit"):
            if not isinstance(entry[key], str):
                raise TypeError(f"{key} is {entry[key]!r}")
        entry["size"].items()
        for mode, by in entry["times"].items():
            lengths = {len(values) for values in by.values()}
            if len(lengths) != 1 or 0 in lengths:
                raise ValueError(f"{entry['name']}, {mode}: unequal numbers of rounds")
            for values in by.values():
                if not all(isinstance(v, int | float) for v in values):
                    raise TypeError(f"{entry['name']}, {mode}: expected numbers")
