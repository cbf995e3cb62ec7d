"""Running a program while it is watched, for `doctor` and `lock`."""

import sys
from typing import TYPE_CHECKING

from ._script import install_on_import, Program, run_script, when_imported


if TYPE_CHECKING:
    from eqx_fastjit.doctor._lock import Recorder
    from eqx_fastjit.doctor._watch import Watch


def run_watched(program: Program, watch: "Watch | Recorder") -> int:
    """Run a program as python does, watched; returns its exit code."""
    watch.begin()
    when_imported("jax", watch.jax_imported)
    install_on_import(watch.equinox_imported)
    try:
        return run_script(*program)
    finally:
        watch.stop()
        flush()


def flush() -> None:
    """Flush the program's output, so that it appears before ours."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # closed by the program
            pass
