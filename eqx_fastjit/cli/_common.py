"""What the subcommands share."""

from eqx_fastjit._files import check_writable


class CommandError(Exception):
    """Printed as one line after the command's name; the exit code is 2."""


def need(*packages: str) -> None:
    """Raise `CommandError` if a package is missing, with the line that installs it."""
    import importlib.util

    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(
            f"this command needs {' and '.join(missing)}: "
            f"pip install {' '.join(missing)}"
        )


def check_output(option: str, path: str) -> None:
    """Raise `CommandError` if a file cannot be written, before anything is run."""
    try:
        check_writable(path)
    except OSError as e:
        raise CommandError(
            f"{option}: cannot write {path!r}: {e.strerror or e}"
        ) from None
