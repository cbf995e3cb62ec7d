"""The command `eqx-fastjit`: its options. `_commands.py` has what they do."""

import argparse
import sys
from collections.abc import Sequence

from ._script import end_as_interrupted, INTERRUPTED, Program, split, why_not


# The options of the commands that run a program which are given something.
_WITH_VALUES = {"--json", "--html", "--trace", "--fail-on", "--functions"}


def _declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--version", action="store_true", help="print versions")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    run = _add(commands, "run", "run a program with eqx_fastjit in place of Equinox's")
    doctor = _add(
        commands,
        "doctor",
        "run a program, and report why it compiled; or read event files",
        "Run a program unchanged, with eqx_fastjit.filter_jit in place of Equinox's. "
        "Report what was compiled and why, the lines responsible, and how to fix them, "
        "to stderr when the program ends. In place of a program, read the event file "
        "that EQX_FASTJIT_LOG=FILE.jsonl has written, also while it grows. Given two "
        "event files, list what is compiled in the second and not in the first.",
    )
    for command in (run, doctor):
        command.add_argument(
            "--async",
            dest="asynchronous",
            action="store_true",
            help="calls return early, as with jax.jit, and do not block as Equinox's",
        )
    doctor.add_argument("--json", metavar="FILE", help="write the report as JSON")
    doctor.add_argument("--html", metavar="FILE", help="write the report as a page")
    doctor.add_argument(
        "--trace", metavar="FILE", help="write a timeline for ui.perfetto.dev"
    )
    doctor.add_argument(
        "--fail-on",
        metavar="WHAT",
        choices=("any", "new"),
        help="exit with 1 if there is any finding; of two event files, anything new",
    )
    profile = _add(commands, "profile", "profile the functions that a program calls")
    profile.add_argument("--html", metavar="FILE", help="write a page")
    profile.add_argument(
        "--functions", metavar="N", type=int, default=1, help="how many (default: 1)"
    )
    for command in (run, doctor, profile):
        files = " [FILE.jsonl [FILE.jsonl]]" if command is doctor else ""
        command.usage = f"{command.prog} [OPTIONS] (SCRIPT | -m MODULE) [ARGS...]"
        command.usage += f"\n       {command.prog} [OPTIONS]{files}" if files else ""
        command.epilog = "Everything after SCRIPT or MODULE is passed to the program."
    _declare_export(commands)


def _declare_export(commands: argparse._SubParsersAction) -> None:
    export = commands.add_parser("export", help="trace a function, and save it")
    export.add_argument("function", metavar="MODULE:FUNCTION")
    export.add_argument(
        "--args",
        metavar="MODULE:FACTORY",
        required=True,
        help="a function without parameters that returns the arguments: a tuple, or a "
        "dictionary of keyword arguments. A jax.ShapeDtypeStruct can be an array",
    )
    export.add_argument("-o", "--output", metavar="FILE", required=True)
    export.add_argument("--compiled", action="store_true", help="with native code")
    export.add_argument("--platforms", metavar="NAME,...", help="cpu, cuda, rocm, tpu")
    export.add_argument("--vjp-order", metavar="N", type=int, default=0)
    show = commands.add_parser("show", help="show the contents of an exported file")
    show.add_argument("file", metavar="FILE")
    show.add_argument("--all", action="store_true", help="list all leaves")


def _add(commands: argparse._SubParsersAction, name: str, text: str, long: str = ""):
    return commands.add_parser(name, help=text, description=long or text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    **Arguments:**

    - `argv`: the arguments after the name of the command. By default, those of the
        process.

    **Returns:**

    The exit code: 0, 1 if a requested check fails, or 2 for invalid arguments.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="eqx-fastjit", description="A faster drop-in for equinox.filter_jit."
    )
    _declare(parser)
    rest: list[str] = []
    if args[:1] and args[0] in ("run", "doctor", "profile"):
        own, rest = split(args[1:], _WITH_VALUES)
        args = [args[0], *own]
    options = parser.parse_args(args)
    if options.version or options.command is None:
        return _without_command(parser, options.version)
    from . import _commands

    try:
        if options.command in ("run", "doctor", "profile"):
            options.program = _program(rest)
        code = getattr(_commands, options.command)(options)
    except _commands.CommandError as e:
        print(f"eqx-fastjit: {e}", file=sys.stderr)
        return 2
    if code == INTERRUPTED and rest:
        end_as_interrupted()
    return code


def _without_command(parser: argparse.ArgumentParser, version: bool) -> int:
    if not version:
        parser.print_help()
        return 2
    from ._versions import print_versions

    return print_versions()


def _program(rest: list[str]) -> Program:
    """What is to be run, or the event files to be read."""
    from ._commands import CommandError

    is_module = rest[:1] == ["-m"]
    rest = rest[1:] if is_module else rest
    if not rest:
        raise CommandError("expected SCRIPT or -m MODULE")
    program = Program(rest[0], tuple(rest[1:]), is_module)
    if (why := why_not(program)) is not None:
        raise CommandError(why)
    return program
