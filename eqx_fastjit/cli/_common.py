"""What the subcommands share."""

import contextlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eqx_fastjit._files import check_writable


class CommandError(Exception):
    """Printed as one line after the command's name; the exit code is 2."""


def need(*packages: str) -> None:
    """Raise `CommandError` if a package is missing, with the line that installs it."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(
            f"this command needs {' and '.join(missing)}: "
            f"pip install {' '.join(missing)}"
        )


def check_output(option: str, path: str) -> None:
    """Raise `CommandError` if a file cannot be written, before anything is run."""
    with _writing(option, path):
        check_writable(path)


def write_output(option: str, path: str, text: str) -> None:
    """Write a file. Raises `CommandError` if this fails."""
    with _writing(option, path):
        Path(path).write_text(text, encoding="utf-8")


@contextlib.contextmanager
def _writing(option: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise CommandError(
            f"{option}: cannot write {path!r}: {e.strerror or e}"
        ) from None


def as_json(report: Any) -> str:
    """The text of a report's JSON file."""
    return json.dumps(report.as_json(), indent=2, allow_nan=False) + "\n"
