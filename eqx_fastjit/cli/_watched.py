"""Running a program while it is watched, for `doctor` and `lock`."""

import sys
from collections.abc import Callable
from typing import Protocol

from ._script import install_on_import, Program, run_script, when_imported


class Watcher(Protocol):
    """What watches a program."""

    def begin(self) -> None:
        """The program is about to begin."""

    def jax_imported(self) -> None:
        """JAX has been imported."""

    def equinox_imported(self) -> None:
        """Equinox has been imported, and our `filter_jit` is in its place."""

    def stop(self) -> None:
        """The program is over."""


def when_jax_is_imported(then: Callable[[], None]) -> None:
    """Call `then` once the program has imported JAX; at once if it has."""
    when_imported("jax", then)


def run_watched(program: Program, watch: Watcher) -> int:
    """Run a program as python does, watched; returns its exit code."""
    watch.begin()
    when_jax_is_imported(watch.jax_imported)
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
