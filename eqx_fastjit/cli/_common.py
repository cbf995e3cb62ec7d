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


# What options are given: anything else is text.
_TYPES = {"N": int, "ROUNDS": int, "PERCENT": float, "S": float, "SECONDS": float}


# An option of all commands that run a program.
ASYNC: dict[str, Any] = {
    "--async": {
        "action": "store_true",
        "dest": "asynchronous",
        "help": "let calls return before the device has finished, as with jax.jit. "
        "Without it, they block, as with Equinox. Only for programs that do not write "
        "to a buffer that was handed to JAX",
    },
}


def add_options(parser: Any, options: dict[str, Any], **defaults: Any) -> None:
    """Add options by their names, each with its help, or with all its settings.

    What an option is given stands after its names: `-o --output FILE`. One that is
    given nothing is a flag.
    """
    for spelling, text in options.items():
        *names, last = spelling.split()
        if isinstance(text, dict):
            parser.add_argument(*names, last, **text)
        elif names:
            parser.add_argument(*names, metavar=last, type=_TYPES.get(last), help=text)
        else:
            parser.add_argument(last, action="store_true", help=text)
    parser.set_defaults(**defaults)


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
