"""`eqx-fastjit run`."""

import argparse
import os
import sys
from typing import Any

from . import _watched
from ._script import end_as_interrupted, install_on_import, run_script, was_interrupted


def add_parser(commands: Any) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "run",
        help="run a program unchanged, with eqx_fastjit in place of Equinox's jit",
        description="Run a program as python would, with eqx_fastjit.filter_jit in "
        "place of equinox.filter_jit. Its output, arguments, exit code and tracebacks "
        "do not change. With EQX_FASTJIT_LOG=compiles in the environment, each "
        "compilation is logged to stderr as it happens.",
    )
    parser.add_program()
    return parser


def main(options: argparse.Namespace) -> int:
    if os.environ.get("EQX_FASTJIT_LOG"):
        _watched.when_jax_is_imported(_log)
        install_on_import(_log)
    else:
        install_on_import()
    code = run_script(*options.program)
    if was_interrupted(code):
        end_as_interrupted()
    return code


def _log() -> None:
    # Before the first function is jitted, which would begin it too. Where it is Equinox
    # that imports JAX, it is not yet there to be used.
    if (
        hasattr(sys.modules.get("equinox"), "filter_jit")
        or "equinox" not in sys.modules
    ):
        _begin_log()


def _begin_log() -> None:
    from eqx_fastjit.doctor._live import log_from_environment

    log_from_environment()
