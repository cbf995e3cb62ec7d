"""Whose line of source it was."""

import functools as ft
import os
import sys
import sysconfig
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple


# What is taken for a library wherever it is.
_OURS = ("jax", "equinox", __name__.partition(".")[0])


class Line(NamedTuple):
    """A line of somebody's program. Sorts by file and line."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{shorten(self.file)}:{self.line}"


def shorten(file: str) -> str:
    """A path for people: relative to where libraries are, or to where we are."""
    for name in ("purelib", "platlib"):
        folder = sysconfig.get_path(name) + os.sep
        if file.startswith(folder):
            return file.removeprefix(folder)
    try:
        short = os.path.relpath(file)
    except ValueError:  # another drive
        return file
    return file if short.startswith(os.pardir) else short


@ft.cache
def _library_folders() -> tuple[str, ...]:
    """Where libraries live: the program is what is elsewhere."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {sysconfig.get_path(name) for name in names}
    # Of checkouts that are on the path too.
    for name in _OURS:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None:
            folders.add(os.path.dirname(os.path.abspath(file)))
    return tuple(f + os.sep for f in folders if f)


@ft.lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    return file.startswith(("<frozen", *_library_folders()))


@ft.lru_cache(maxsize=4096)
def package_of(file: str) -> str:
    """Of a library's file: "jax", "equinox" or "eqx_fastjit"; else nothing."""
    for name in _OURS:
        home = getattr(sys.modules.get(name), "__file__", None)
        if home and file.startswith(os.path.dirname(os.path.abspath(home)) + os.sep):
            return name
    return ""


def look_again() -> None:
    """A library has been imported since, perhaps from a checkout."""
    for cached in (_library_folders, is_library, package_of):
        cached.cache_clear()


def _frames() -> Iterator[FrameType]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def user_line() -> Line | None:
    """The innermost line of the program itself that led here, not of a library.

    `explain` names the nearest caller, which may be a library's. Here it is the user's
    own line that counts: that is where something can be done about it.
    """
    for frame in _frames():
        code = frame.f_code
        if not is_library(code.co_filename):
            return Line(code.co_filename, frame.f_lineno, code.co_qualname)
    return None
