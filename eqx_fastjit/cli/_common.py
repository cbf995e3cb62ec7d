"""What the subcommands share."""


class CommandError(Exception):
    """Printed as one line after the command's name; the exit code is 2."""


def need(package: str, extra: str) -> None:
    """Raise `CommandError` if an optional package is missing, naming the extra."""
    import importlib.util

    if importlib.util.find_spec(package) is None:
        raise CommandError(
            f"this command needs {package}: pip install 'eqx_fastjit[{extra}]'"
        )
