"""Whose line of source it was."""

import functools as ft
import itertools
import linecache
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import NamedTuple


_MAX_LINES = 32

# What is taken for a library wherever it is.
_OURS = ("jax", "jaxlib", "equinox", __name__.partition(".")[0])


class Line(NamedTuple):
    """A line of somebody's program. Sorts by file and line."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{shorten(self.file)}:{self.line}"


def _current_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return os.sep


# Where the user is: the program may change the directory, and remove it.
_FOLDER = _current_folder()


def shorten(file: str) -> str:
    """A path for people: relative to where libraries are, or to where the user is."""
    for name in ("purelib", "platlib", "stdlib"):
        folder = sysconfig.get_path(name) + os.sep
        if file.startswith(folder):
            return file.removeprefix(folder)
    if not os.path.isabs(file):
        return os.path.normpath(file)
    try:
        short = os.path.relpath(file, _FOLDER)
    except ValueError:  # another drive
        return file
    return os.path.normpath(file) if short.startswith(os.pardir) else short


@ft.cache
def _library_folders() -> tuple[str, ...]:
    """Where libraries live: the program is what is elsewhere."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {sysconfig.get_path(name) for name in names}
    # Of the environment that this one is on top of, and the user's own.
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    # Of checkouts that are on the path too.
    folders |= _folders(*_OURS)
    return tuple(f + os.sep for f in folders if f)


def _folders(*names: str) -> set[str]:
    """Where those of these packages are that have been imported."""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in names]
    return {os.path.dirname(os.path.abspath(file)) for file in files if file}


@ft.lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    installed = f"{os.sep}site-packages{os.sep}" in file
    # What `timeit` makes of a statement is not the program's either.
    made = ("<frozen", "<timeit-src>")
    return installed or file.startswith((*made, *_library_folders()))


@ft.lru_cache(maxsize=4096)
def package_of(file: str) -> str:
    """The package of a file, if it is one of `_OURS`; else nothing."""
    for name in _OURS:
        if any(file.startswith(folder + os.sep) for folder in _folders(name)):
            return name
    return ""


def look_again() -> None:
    """A library has been imported since, perhaps from a checkout."""
    for cached in (_library_folders, is_library, package_of):
        cached.cache_clear()


def frames() -> Iterator[FrameType]:
    """The frames that led here, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def user_frame() -> FrameType | None:
    """The innermost frame of the program itself that led here, not of a library.

    `explain` names the nearest caller, which may be a library's. Here it is the user's
    own line that counts: that is where something can be done about it.
    """
    return next((f for f in frames() if not is_library(f.f_code.co_filename)), None)


def outermost_frame() -> FrameType | None:
    """The outermost frame of the program itself that called into JAX or Equinox.

    `jax.vmap(f)(x)`, rather than a line of `f`, which it runs.
    """
    found: FrameType | None = None
    through_jax = False
    for frame in frames():
        file = frame.f_code.co_filename
        if not is_library(file):
            if through_jax or found is None:
                found = frame
            through_jax = False
        elif package_of(file) in ("jax", "equinox"):
            through_jax = True
    return found


def line_at(frame: FrameType) -> Line:
    code = frame.f_code
    return Line(code.co_filename, frame.f_lineno, code.co_qualname)


def user_line() -> Line | None:
    """The line that the innermost frame of the program itself is at."""
    frame = user_frame()
    return None if frame is None else line_at(frame)


def user_lines() -> tuple[Line, ...]:
    """The lines that all frames of the program itself are at, the innermost first.

    Of a deep recursion the innermost alone.
    """
    own = (f for f in frames() if not is_library(f.f_code.co_filename))
    return tuple(map(line_at, itertools.islice(own, _MAX_LINES)))


@ft.lru_cache(maxsize=1024)
def expression_at(code: CodeType, instruction: int) -> str:
    """The source of the expression that `frame.f_lasti` is of; empty if not known."""
    positions = itertools.islice(code.co_positions(), instruction // 2, None)
    first, last, start, end = next(positions, (None,) * 4)
    if first is None or last is None or start is None or end is None:
        return ""
    file = code.co_filename
    lines = [linecache.getline(file, n).encode() for n in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return b"".join(lines).decode(errors="replace")
