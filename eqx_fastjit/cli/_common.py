"""What the subcommands share."""

from eqx_fastjit._files import check_writable


class CommandError(Exception):
    """Printed as one line after the command's name; the exit code is 2."""


def need(package: str, extra: str | None = None) -> None:
    """Raise `CommandError` if a package is missing, naming the extra that has it."""
    import importlib.util

    if importlib.util.find_spec(package) is None:
        what = package if extra is None else f"'eqx_fastjit[{extra}]'"
        raise CommandError(f"this command needs {package}: pip install {what}")


def check_output(option: str, path: str) -> None:
    """Raise `CommandError` if a file cannot be written, before anything is run."""
    try:
        check_writable(path)
    except OSError as e:
        raise CommandError(
            f"{option}: cannot write {path!r}: {e.strerror or e}"
        ) from None
