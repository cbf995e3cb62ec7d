"""The command `eqx-fastjit`. One file per subcommand, listed in `_COMMANDS`.

Each has `add_parser`, which declares the subcommand and must be cheap (help is printed
without importing JAX), and `main`, which does the work and returns the exit code.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from ._common import CommandError
from ._script import ProgramParser


_COMMANDS = ("bench", "doctor", "export", "gain", "lock", "profile", "run", "show")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    **Arguments:**

    - `argv`: the arguments after the name of the command. By default, those of the
        process.

    **Returns:**

    The exit code: 0, 1 if a requested check fails, or 2 for invalid arguments.
    """
    parser = argparse.ArgumentParser(
        prog="eqx-fastjit", description="A faster drop-in for equinox.filter_jit."
    )
    parser.add_argument("--version", action="store_true", help="print versions")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", parser_class=ProgramParser
    )
    for name in _COMMANDS:
        module = importlib.import_module(f"._{name}", __name__)
        module.add_parser(commands).set_defaults(main=module.main)
    options = parser.parse_args(argv)
    if options.version:
        from ._versions import print_versions

        return print_versions()
    if options.command is None:
        parser.print_help()
        return 2
    try:
        return options.main(options)
    except CommandError as e:
        print(f"eqx-fastjit: {e}", file=sys.stderr)
        return 2
