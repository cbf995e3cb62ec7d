"""Benchmarks of eqx_fastjit; see README.md."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any


def prefer_installed_package() -> None:
    """Import `eqx_fastjit` from where it is installed, rather than from this checkout.

    `python -m` puts the current folder first, and the source in a checkout has no C
    extension unless it was built in place.
    """
    root = str(Path(__file__).parent.parent)
    if sys.path[0] in ("", root):
        sys.path.append(sys.path.pop(0))


if sys.argv[:1] == ["-m"]:  # as long as Python looks for the module that it is to run
    prefer_installed_package()


def parser_of(module: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of a command that may write a results file."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=(description or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    file: Any = {"type": _results_path, "metavar": "FILE"}
    parser.add_argument("--json", **file, help="write the results")
    return parser


def _results_path(name: str) -> Path:
    """A file that can be written, which is checked before anything is measured."""
    path = Path(name)
    written = path if path.exists() else path.parent
    if path.is_dir() or not os.access(written, os.W_OK):
        raise argparse.ArgumentTypeError(f"cannot write to {name}")
    return path
