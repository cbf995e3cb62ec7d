"""`eqx-fastjit run`."""

import argparse
from typing import Any

from ._script import end_as_interrupted, install_on_import, run_script, was_interrupted


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Declare the subcommand and its arguments."""
    parser = commands.add_parser(
        "run",
        help="run a program, unchanged, with our filter_jit in Equinox's place",
        description="Run a program as python does, with our filter_jit in the place of "
        "Equinox's. Its output, arguments, exit code and tracebacks are its own.",
    )
    parser.add_program()
    return parser


def main(options: argparse.Namespace) -> int:
    """Run the subcommand; returns the exit code."""
    name, args, is_module = options.program
    install_on_import()
    code = run_script(name, args, is_module)
    if was_interrupted(code):
        end_as_interrupted()
    return code
