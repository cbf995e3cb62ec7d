"""Running a program while it is watched, for `doctor` and `lock`."""

import sys
from collections.abc import Callable
from typing import Any, Protocol

from ._common import CommandError
from ._script import _Loader, install_on_import, Program, run_script


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


class _JaxHook:
    """A meta path finder that calls back once JAX has been imported."""

    def __init__(self, then: Any):
        self.then = then
        self.depth = 0

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "jax":
            return None
        for finder in [f for f in sys.meta_path if f is not self]:
            find_spec = getattr(finder, "find_spec", None)
            spec = None if find_spec is None else find_spec(name, path, target)
            if spec is not None:
                spec.loader = _Loader(self, spec.loader)  # pyright: ignore
                return spec
        return None

    def loaded(self) -> None:
        if "jax" in sys.modules and self in sys.meta_path:
            sys.meta_path.remove(self)  # pyright: ignore[reportArgumentType]
            self.then()


def when_jax_is_imported(then: Callable[[], None]) -> None:
    """Call `then` once the program has imported JAX; at once if it has."""
    hook = _JaxHook(then)
    sys.meta_path.insert(0, hook)  # pyright: ignore[reportArgumentType]
    hook.loaded()


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


def write_output(option: str, path: str, text: str) -> None:
    """Write a file. Raises `CommandError` if this fails."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as e:
        raise CommandError(
            f"{option}: cannot write {path!r}: {e.strerror or e}"
        ) from None
