"""Syntax trees of source files."""

import ast
import functools as ft
import linecache


def syntax_tree(file: str) -> ast.Module | None:
    """The syntax tree of a file; `None` if it is empty, or is not Python (any more)."""
    text = "".join(linecache.getlines(file))
    return _parse(text) if text else None


@ft.lru_cache(maxsize=64)
def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    # Deeply nested code is a `MemoryError` in the parser, or a `RecursionError` after
    # it. A null byte is a `ValueError` before Python 3.12. On Python 3.11, threads that
    # parse at the same time may get a `SystemError` (python/cpython#106905).
    except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError):
        return None
