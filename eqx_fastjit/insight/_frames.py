"""Whose code a file is, and what of a line was running."""

import functools
import inspect
import linecache
import os
import site
import sysconfig
from types import FrameType
from typing import Any

import equinox
import jax

from eqx_fastjit import _place


def folder_of(module: Any) -> str:
    """The folder that a module is in."""
    return os.path.dirname(os.path.abspath(module.__file__)) + os.sep


# Checkouts of JAX, of this library and of Equinox count as libraries, too.
_JAX, _OURS, _EQUINOX = map(folder_of, (jax, _place, equinox))


@functools.cache
def _libraries() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    folders = {sysconfig.get_path(name) for name in names}
    # Of the environment that this one is on top of, and the user's own.
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    own = [folder + os.sep for folder in folders if folder]
    # And what is no file: modules that are frozen, and statements of `timeit`.
    return (*own, _JAX, _OURS, _EQUINOX, "<frozen", "<timeit-src>")


@functools.lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    return f"{os.sep}site-packages{os.sep}" in file or file.startswith(_libraries())


def is_jax(file: str) -> bool:
    """Whether a file is of JAX or of this library."""
    return file.startswith((_JAX, _OURS))


def user_frame() -> tuple[FrameType | None, str]:
    """The innermost frame of the program itself, and the library function it called."""
    frame = inspect.currentframe()
    called = ""
    while frame is not None and is_library(frame.f_code.co_filename):
        called, frame = frame.f_code.co_name, frame.f_back
    return frame, called


def expression_at(frame: FrameType) -> str:
    """The source of the expression that a frame is at; empty if it is not known."""
    positions = list(frame.f_code.co_positions())
    first, last, start, end = positions[frame.f_lasti // 2]
    if first is None or last is None:
        return ""
    file = frame.f_code.co_filename
    # Columns count bytes.
    lines = [linecache.getline(file, n).encode() for n in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return b"".join(lines).decode(errors="replace")
