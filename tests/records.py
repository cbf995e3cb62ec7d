"""Records of long runs, for `benchmarks/results` and the documentation."""

import datetime
import json
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.results_file import machine


def stamp(*packages: str) -> dict[str, Any]:
    """Commit, date, machine, and versions, including those of `packages`."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    root = Path(__file__).parent
    out = subprocess.run(command, capture_output=True, text=True, cwd=root)
    names = ("jax", "jaxlib", "equinox", "numpy", *packages)
    now = datetime.datetime.now(datetime.UTC)
    return {
        "commit": out.stdout.strip(),
        "date": now.isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in names},
        },
    }


def write(path: Path, results: Any) -> None:
    """Write results as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")


def add(path: Path, entry: dict[str, Any], *names: str) -> None:
    """Add an entry to a file's list, in place of those with the same `names`."""
    known = json.loads(path.read_text()) if path.exists() else []
    kept = [e for e in known if any(e[name] != entry[name] for name in names)]
    write(path, [*kept, entry])
