"""Run a program as python would, with eqx_fastjit.filter_jit in place of
equinox.filter_jit. Calls block, as with Equinox, unless --async is given. The program's
output, arguments, exit code and tracebacks do not change. With EQX_FASTJIT_LOG=compiles
in the environment, each compilation is logged to stderr as it happens.
"""

import argparse
import os
import sys

from ._common import add_options, ASYNC
from ._script import install_on_import, ProgramParser, run_script, when_imported


def declare(parser: ProgramParser) -> None:
    add_options(parser, ASYNC)
    parser.add_program()


def main(options: argparse.Namespace) -> int:
    if os.environ.get("EQX_FASTJIT_LOG"):
        when_imported("jax", _log)
        install_on_import(_log, asynchronous=options.asynchronous)
    else:
        install_on_import(asynchronous=options.asynchronous)
    return run_script(*options.program)


def _log() -> None:
    # Before the first function is jitted, which would begin it too. Where it is Equinox
    # that imports JAX, it is not yet there to be used.
    equinox = sys.modules.get("equinox")
    if equinox is None or hasattr(equinox, "filter_jit"):
        _begin_log()


def _begin_log() -> None:
    from eqx_fastjit.doctor._live import log_from_environment

    log_from_environment()
