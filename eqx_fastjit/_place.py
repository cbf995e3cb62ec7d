"""A line of a program, and the lines of the user's own code that led to a call."""

import inspect
import os
import site
import sys
import sysconfig
import types
from typing import Any, NamedTuple

import equinox as eqx
import jax


# The most lines that are kept of the way to a call.
_MAX_FRAMES = 8


class Place(NamedTuple):
    """A line of source code."""

    file: str
    line: int
    # The function it stands in, or the function it is the first line of.
    function: str


def place_of(fun: Any) -> Place | None:
    """Where a Python function was defined, or the one that it wraps."""
    code = getattr(inspect.unwrap(fun), "__code__", None)
    if not isinstance(code, types.CodeType):
        return None
    return Place(code.co_filename, code.co_firstlineno, code.co_qualname)


# This library, and those whose frames say nothing about a program.
_OWN = tuple(
    os.path.dirname(os.path.abspath(file)) + os.sep
    for file in (__file__, jax.__file__, eqx.__file__)
)
# Where Python and installed packages are, with the scripts that start them.
_FOLDERS = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
_INSTALLED = tuple(
    folder + os.sep
    for folder in (*map(sysconfig.get_path, _FOLDERS), site.getusersitepackages())
)


def is_users(file: str) -> bool:
    """Whether a file is the user's own: no installed package, and none of Python's."""
    return not file.startswith((*_OWN, *_INSTALLED, "<frozen ", "<@", "<timeit"))


def is_written_by_user(code: types.CodeType) -> bool:
    """Whether code is in a file of the user's, and not of a method of a dataclass."""
    is_generated = code.co_qualname.startswith("__create_fn__")
    return is_users(code.co_filename) and not is_generated


def user_frames() -> tuple[Place, ...]:
    """The lines of the user's code that are being run, innermost first.

    If there are none, those of other libraries than JAX and Equinox.
    """
    users: list[Place] = []
    others: list[Place] = []
    frame = sys._getframe(1)
    while frame is not None and len(users) < _MAX_FRAMES:
        code = frame.f_code
        place = Place(code.co_filename, frame.f_lineno, code.co_qualname)
        if is_written_by_user(code):
            users.append(place)
        elif not place.file.startswith((*_OWN, "<frozen ")):
            others.append(place)
        frame = frame.f_back
    return tuple(users or others[:_MAX_FRAMES])
