"""A line of a program, and a call that stands in one."""

import ast
import inspect
import re
import types
from typing import Any, NamedTuple


# The temporary file that ipykernel names the code of a cell by.
_CELL = re.compile(r".*[/\\]ipykernel_\d+[/\\]\d+\.py")


class Place(NamedTuple):
    """A line of source code."""

    file: str
    line: int
    # The function it stands in, or the function it is the first line of.
    function: str

    def __str__(self) -> str:
        file = "<cell>" if _CELL.fullmatch(self.file) else self.file
        return f"{file}:{self.line}"


def place_of(fun: Any) -> Place | None:
    """Where a Python function was defined, or the one that it wraps."""
    try:
        fun = inspect.unwrap(fun)
    except ValueError:  # wraps itself
        pass
    code = getattr(fun, "__code__", None)
    if not isinstance(code, types.CodeType):
        return None
    return Place(code.co_filename, code.co_firstlineno, code.co_qualname)


def call_of(expression: str) -> ast.Call | None:
    """The call that an expression is, if it is one."""
    try:
        node = ast.parse(expression, mode="eval").body
    except SyntaxError:
        return None
    return node if isinstance(node, ast.Call) else None
