"""The command `eqx-fastjit`: its options. `_commands.py` has what they do."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ._script import INTERRUPTED


def _output(path: str) -> Path:
    """A file to write in the end: whether it can be is known before anything is run."""
    file = Path(path).absolute()  # the program may change the directory
    is_new = not file.exists()
    try:
        file.open("ab").close()
    except OSError as e:
        why = f"cannot write {path!r}: {e.strerror}"
        raise argparse.ArgumentTypeError(why) from None
    if is_new:
        file.unlink()
    return file


class _Parser(argparse.ArgumentParser):
    """Has a command, and not the parser of all commands, say what it does not know."""

    def parse_known_args(self, *args: Any) -> Any:  # pyright: ignore
        options, unknown = super().parse_known_args(*args)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="eqx-fastjit", description="A faster drop-in for equinox.filter_jit."
    )
    parser.add_argument("--version", action="store_true", help="print versions")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    add = commands.add_parser
    run = add("run", help="run a program with eqx_fastjit's filter_jit")
    doctor = add(
        "doctor",
        help="run a program, and report why it compiled; or read event files",
        description="Run a program as `run` does, and when it ends, report to stderr "
        "what was compiled and why, the lines responsible, and how to fix them. Or "
        "read FILE.jsonl, which EQX_FASTJIT_LOG=FILE.jsonl writes, also while it "
        "grows; of two such files, what is compiled in the second and not the first.",
    )
    profile = add("profile", help="profile the functions that a program calls")
    for command in (run, doctor, profile):
        command.usage = f"{command.prog} [OPTIONS] (SCRIPT | -m MODULE) [ARGS...]"
        command.epilog = "Everything after SCRIPT or MODULE is passed to the program."
        command.add_argument(
            "program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS
        )
        command.add_argument(
            "-m", dest="is_module", action="store_true", help="run a module"
        )
    for command in (run, doctor):
        command.add_argument(
            "--async",
            dest="asynchronous",
            action="store_true",
            help="calls return before the device has finished, as with jax.jit",
        )
    doctor.usage = (
        f"{doctor.usage}\n       {doctor.prog} [OPTIONS] FILE.jsonl [FILE.jsonl]"
    )

    def add_file(command: argparse.ArgumentParser, option: str, text: str) -> None:
        command.add_argument(option, type=_output, metavar="FILE", help=text)

    add_file(doctor, "--json", "write the report as JSON")
    add_file(doctor, "--html", "write the report as a page")
    add_file(doctor, "--trace", "write a timeline for ui.perfetto.dev")
    doctor.add_argument(
        "--fail-on",
        metavar="WHAT",
        choices=("any", "new"),
        help="exit with 1 if there is any finding; of two event files, anything new",
    )
    add_file(profile, "--html", "write a page")
    profile.add_argument(
        "--functions", metavar="N", type=int, default=1, help="how many (default: 1)"
    )
    export = add("export", help="trace a function, and save it")
    export.add_argument("function", metavar="MODULE:FUNCTION")
    export.add_argument(
        "--args",
        metavar="MODULE:FACTORY",
        required=True,
        help="a function without parameters that returns the arguments: a tuple, or a "
        "dictionary of keyword arguments. A jax.ShapeDtypeStruct can be an array",
    )
    export.add_argument("-o", "--output", type=_output, metavar="FILE", required=True)
    export.add_argument("--compiled", action="store_true", help="with native code")
    export.add_argument(
        "--platforms",
        metavar="NAME,...",
        type=lambda text: text.split(","),
        help="cpu, cuda, rocm, tpu",
    )
    export.add_argument("--vjp-order", metavar="N", type=int, default=0)
    show = add("show", help="show the contents of an exported file")
    show.add_argument("file", metavar="FILE")
    show.add_argument("--all", action="store_true", help="list all leaves")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    **Arguments:**

    - `argv`: the arguments after the name of the command. By default, those of the
        process.

    **Returns:**

    The exit code: 0, 1 if a requested check fails, or 2 for invalid arguments.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    from . import _commands

    if options.version:
        return _commands.print_versions()
    if options.command is None:
        parser.print_help()
        return 2
    try:
        code = getattr(_commands, options.command)(options)
    except _commands.CommandError as e:
        print(f"eqx-fastjit: {e}", file=sys.stderr)
        return 2
    if code == INTERRUPTED:
        # Python ends then by its own signal, so that a shell stops a loop, say.
        sys.excepthook = lambda *_: None  # it has been reported
        raise KeyboardInterrupt
    return code
