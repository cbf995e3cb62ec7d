"""What a function reads beside its arguments: globals, variables of the function around
it, entries of dictionaries there, and attributes.

By its source: none of its code is run.
"""

import ast
import contextlib
import functools
import inspect
import linecache
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from eqx_fastjit._callables import source_of
from eqx_fastjit._facts import is_users, Place

from ._leaves import argument_of, is_below


MISSING = object()


class Read(NamedTuple):
    """Where a function reads a value."""

    # As in the source, `cfg['lr']`, and its expression there.
    path: str
    expression: ast.AST
    place: Place
    function: Callable[[], types.FunctionType | None]
    # Of the arguments, those of which attributes may change.
    arguments: Mapping[str, Callable[[], Any]]

    def value(self) -> Any:
        """What would be read now; `MISSING` if that is gone, or not known."""
        return self.value_of(self.expression)

    def value_of(self, expression: ast.AST) -> Any:
        """The value of a part of the expression."""
        function = self.function()
        match expression:
            case ast.Attribute(value=inner, attr=name):
                owner = self.value_of(inner)
                if owner is not MISSING:
                    return inspect.getattr_static(owner, name, MISSING)
            case ast.Subscript(value=inner, slice=ast.Constant(value=key)):
                found: Any = self.value_of(inner)
                return found.get(key, MISSING) if type(found) is dict else MISSING
            case ast.Name(id=name) if name in self.arguments:
                return self.arguments[name]()
            case ast.Name(id=name) if function is not None:
                code, free = function.__code__, function.__code__.co_freevars
                if name not in (*free, *code.co_varnames, *code.co_cellvars):
                    return function.__globals__.get(name, MISSING)
                with contextlib.suppress(ValueError):  # it is none, or empty
                    return (function.__closure__ or ())[free.index(name)].cell_contents
        return MISSING


def reads_of(
    function: Any,
    arguments: Mapping[str, Callable[[], Any]] | None = None,
    depth: int = 2,
) -> Iterator[Read]:
    """What a function reads, and those of the user's functions that it calls.

    Of arguments, only what is in the given ones.
    """
    function = source_of(function)
    if function is None or not is_users(function.__code__.co_filename):
        return
    code = function.__code__
    for path, node in _read_in(code).items():
        place = Place(code.co_filename, node.lineno, code.co_qualname)
        read = Read(path, node, place, weakref.ref(function), arguments or {})
        value = read.value()
        if value is not MISSING:
            yield read
        if depth and callable(value):
            inside: dict[str, Any] = {}
            # Of a method, its first parameter is the object that it was read of.
            if type(value) is types.FunctionType and type(node) is ast.Attribute:
                owner = functools.partial(read.value_of, node.value)
                if inspect.getattr_static(type(owner()), node.attr, None) is value:
                    inside = dict.fromkeys(value.__code__.co_varnames[:1], owner)
            yield from reads_of(value, inside, depth - 1)


def _read_in(code: types.CodeType) -> dict[str, Any]:
    """What code reads and does not write, also in functions that it defines."""
    read, written = _read_and_written_in(code)
    return {
        path: node
        for path, node in read.items()
        if not any(path == x or is_below(path, x) for x in written)
    }


@functools.lru_cache(maxsize=1024)
def _read_and_written_in(code: types.CodeType) -> tuple[dict[str, Any], set[str]]:
    read: dict[str, Any] = {}
    written: set[str] = set()
    expressions = expressions_in(code.co_filename)
    aside = _aside_in(_source(code.co_filename))
    for node in map(expressions.get, code.co_positions()):
        if node in aside:
            continue
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            path = ast.unparse(node)
            read.setdefault(path, node)
            if not isinstance(node.ctx, ast.Load):
                written.add(path)
    for inner in (x for x in code.co_consts if isinstance(x, types.CodeType)):
        own = *inner.co_varnames, *inner.co_cellvars
        inside, written_inside = _read_and_written_in(inner)
        read = {p: x for p, x in inside.items() if argument_of(p) not in own} | read
        written |= {p for p in written_inside if argument_of(p) not in own}
    return read, written


@functools.lru_cache(maxsize=16)
def _aside_in(source: str) -> set[Any]:
    """What decides nothing in a trace, though it is read there.

    The arguments of a host callback, which runs in each call, and of `print`; and
    arrays of which only shape or dtype is read.
    """
    aside: set[Any] = set()
    for node in _nodes_in(source):
        inside: list[Any] = []
        if isinstance(node, ast.Attribute) and node.attr in OF_AVAL:
            inside = [node.value]
        elif isinstance(node, ast.Call):
            is_aside = ast.unparse(node.func).rpartition(".")[2] in _ASIDE
            inside = [*node.args, *node.keywords] if is_aside else []
        aside.update(x for part in inside for x in ast.walk(part))
    return aside


OF_AVAL = ("shape", "dtype", "ndim", "size")
_ASIDE = (
    *("callback", "debug_callback", "pure_callback", "io_callback"),
    *("print", "debug_print", "pprint"),
)


def _source(file: str) -> str:
    return "".join(linecache.getlines(file))


def nodes_in(file: str) -> list[ast.AST]:
    """All of the syntax in a file, as it was when its lines were first asked for.

    Nothing of what is no Python.
    """
    return _nodes_in(_source(file))


# What the parser warns of, it has warned of as the program was imported.
_PARSED = "<eqx_fastjit>"
warnings.filterwarnings("ignore", module=_PARSED)


@functools.lru_cache(maxsize=16)
def _nodes_in(source: str) -> list[ast.AST]:
    try:
        return [*ast.walk(ast.parse(source, _PARSED))]
    # Of code that is nested too deeply for the parser; or of no Python.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def expressions_in(file: str) -> dict[Any, ast.expr]:
    """The expressions in a file by their positions, which instructions have, too."""
    return _expressions_in(_source(file))


@functools.lru_cache(maxsize=16)
def _expressions_in(source: str) -> dict[Any, ast.expr]:
    return {
        (x.lineno, x.end_lineno, x.col_offset, x.end_col_offset): x
        for x in reversed(_nodes_in(source))  # of several, the outermost
        if isinstance(x, ast.expr)
    }
