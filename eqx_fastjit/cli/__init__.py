"""The command `eqx-fastjit`. One file per subcommand, listed in `_COMMANDS`.

The docstring of each is its description. `declare` adds its options, and must be cheap
(help is printed without importing JAX); `main` does the work and returns the exit code.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from ._common import CommandError
from ._script import check_program, end_as_interrupted, ProgramParser, was_interrupted


_COMMANDS = {
    "doctor": "run a program unchanged, and report why it recompiled and blocked",
    "export": "trace and compile a function, and save it to a file",
    "lock": "record every signature that a program compiles; check or precompile them",
    "profile": "run a program, then profile the jitted functions that it called most",
    "run": "run a program unchanged, with eqx_fastjit in place of Equinox's jit",
    "show": "show the contents of a file written by eqx-fastjit export",
}


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
    for name, text in _COMMANDS.items():
        module = importlib.import_module(f"._{name}", __name__)
        command = commands.add_parser(name, help=text, description=module.__doc__)
        module.declare(command)
        command.set_defaults(main=module.main)
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        which = commands.choices.get(options.command, parser)
        which.error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.version:
        from ._versions import print_versions

        return print_versions()
    if options.command is None:
        parser.print_help()
        return 2
    try:
        if "program" in options:
            check_program(options.program.name, options.program.is_module)
        code = options.main(options)
    except CommandError as e:
        print(f"eqx-fastjit: {e}", file=sys.stderr)
        return 2
    if was_interrupted(code):
        end_as_interrupted()
    return code
