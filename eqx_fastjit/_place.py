"""A line of a program, and the lines of the user's own code that led to a call."""

import functools
import os
import site
import sys
import sysconfig
import traceback
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


def innermost(fun: Any) -> Any:
    """What is behind a callable: a function, a class, a Module, ..."""
    for _ in range(20):  # one may wrap itself
        is_partial = isinstance(fun, functools.partial) or type(fun) is eqx.Partial
        inside = fun.func if is_partial else getattr(fun, "__wrapped__", fun)
        if inside is fun:
            break
        fun = inside
    return fun


def source_of(fun: Any) -> types.FunctionType | None:
    """The Python function behind a callable, if there is one."""
    fun = innermost(fun)
    if type(fun) is types.MethodType:
        fun = fun.__func__
    if type(fun) is not types.FunctionType:
        fun = innermost(getattr(type(fun), "__call__", None))  # noqa: B004
    return fun if type(fun) is types.FunctionType else None


def place_of(fun: Any) -> Place | None:
    """Where the Python function behind a callable was defined."""
    source = source_of(fun)
    if source is None:
        return None
    code = source.__code__
    return Place(code.co_filename, code.co_firstlineno, code.co_qualname)


# This library, and those whose frames say nothing about a program.
_OWN = (
    *(os.path.dirname(x) + os.sep for x in (__file__, jax.__file__, eqx.__file__)),
    "<frozen ",
)
# Where Python and installed packages are, with the scripts that start them.
_FOLDERS = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
_INSTALLED = tuple(
    folder + os.sep
    for folder in (*map(sysconfig.get_path, _FOLDERS), site.getusersitepackages())
)


def is_users(file: str) -> bool:
    """Whether a file is the user's own: no installed package, and none of Python's."""
    return not file.startswith((*_OWN, *_INSTALLED, "<@", "<timeit"))


def is_written_by_user(code: types.CodeType) -> bool:
    """Whether code is in a file of the user's, and not of a method of a dataclass."""
    is_generated = code.co_qualname.startswith("__create_fn__")
    return is_users(code.co_filename) and not is_generated


def user_frames() -> tuple[Place, ...]:
    """The lines of the user's code that are being run, innermost first.

    If there are none, those of other libraries than JAX and Equinox.
    """
    stack = traceback.walk_stack(sys._getframe(1))
    found = [x for x in stack if not x[0].f_code.co_filename.startswith(_OWN)]
    users = [x for x in found if is_written_by_user(x[0].f_code)]
    return tuple(
        Place(frame.f_code.co_filename, line, frame.f_code.co_qualname)
        for frame, line in (users or found)[:_MAX_FRAMES]
    )
