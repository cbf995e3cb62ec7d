"""The user's own lines, and what to write in place of what one of them passes."""

import ast
import functools
import linecache
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from eqx_fastjit._place import Place

from ._records import Record
from ._words import show_place


# A call that is longer than this is not written out again.
_MAX_CALL = 88


def source_line(place: Place | None) -> str:
    """The text of a line; empty if it is not known."""
    return "" if place is None else linecache.getline(place.file, place.line).strip()


def root_of(path: str) -> str:
    """The argument that a path begins with: `batch` of `batch['x'][0]`."""
    return re.split(r"[.\[<]", path, maxsplit=1)[0]


def edit(
    record: Record, site: Place | None, path: str, dtype: str | None, *, assigned: bool
) -> str:
    """What makes an array of a leaf, in a sentence that ends with a space.

    **Arguments:**

    - `record`: a compilation of the function.
    - `site`: the line that calls it.
    - `path`: of the leaf.
    - `dtype`: that of the array, or `None` for JAX's default.
    - `assigned`: whether to edit the assignment of the variable that is passed, rather
        than the call.
    """
    cast = "" if dtype is None else f", dtype=jnp.{dtype}"
    call = _find_call(site, record)
    passed = call.arguments.get(root_of(path)) if call else None
    if site is None or call is None or passed is None:
        text = f"jnp.asarray({path}{cast})"
        return f"Write `{text}` for `{path}`, called at {show_place(site)}. "
    variable = ast.unparse(passed)
    made = _find_assignment(site, variable)
    if root_of(path) != path:
        path = variable + path.removeprefix(root_of(path))
        found = _find_entry(record.frames, made, path)
        if found is None:
            where = show_place(record.frames[-1])
            text = f"jnp.asarray({path}{cast})"
            return f"Write `{text}` where it is created, for the call at {where}. "
        text = f"jnp.asarray({_without_cast(found.node)}{cast})"
        return f"Write `{text}` for `{path}` in {show_place(found.place)}. "
    if assigned and made is not None:
        text = f"jnp.asarray({_without_cast(made.node)}{cast})"
        return f"Write `{variable} = {text}` in {show_place(made.place)}. "
    text = f"jnp.asarray({_without_cast(passed)}{cast})"
    whole = call.edited(passed, text)
    edited = whole if len(whole) <= _MAX_CALL else text
    return f"Write `{edited}` in {show_place(site)}. "


class _Call(NamedTuple):
    """A call of a function, as the source has it."""

    node: ast.Call
    # What is passed for each parameter.
    arguments: dict[str, ast.expr]

    def edited(self, old: ast.expr, text: str) -> str:
        """The call with another argument."""
        new = ast.parse(text, mode="eval").body
        args = [new if x is old else x for x in self.node.args]
        keywords = [
            ast.keyword(k.arg, new if k.value is old else k.value)
            for k in self.node.keywords
        ]
        return ast.unparse(ast.Call(self.node.func, args, keywords))


class _Value(NamedTuple):
    """An expression in a file."""

    file: str
    node: ast.expr

    @property
    def place(self) -> Place:
        """Its line."""
        return Place(self.file, self.node.lineno, "")


@functools.lru_cache(maxsize=32)
def _parsed(source: str) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):  # of another language, say
        return []


def _nodes(place: Place | None, kind: Any, at_line: bool = True) -> Iterator[Any]:
    """The nodes of a kind in a file, or at a line of it, outer ones first."""
    if place is None:
        return
    for node in _parsed("".join(linecache.getlines(place.file))):
        if isinstance(node, kind):
            first, last = node.lineno, node.end_lineno or node.lineno
            if not at_line or first <= place.line <= last:
                yield node


def _find_call(site: Place | None, record: Record) -> _Call | None:
    """The call of a function at a line; `None` if there is none, or several."""
    name = record.function.rpartition(".")[2]
    found = [node for node in _nodes(site, ast.Call) if _callee(node) == name]
    if len(found) != 1:
        return None
    (node,) = found
    names = _parameters(record.place, name)
    arguments: dict[str, ast.expr] = {}
    if names[:1] == ["self"] and isinstance(node.func, ast.Attribute):
        arguments["self"] = node.func.value
        names = names[1:]
    for parameter, value in zip(names, node.args, strict=False):
        if isinstance(value, ast.Starred):
            break
        arguments[parameter] = value
    arguments |= {k.arg: k.value for k in node.keywords if k.arg is not None}
    return _Call(node, arguments)


def _callee(node: ast.expr) -> str:
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
        case _:
            return ""


def _parameters(defined: Place | None, name: str) -> list[str]:
    """The names of a function's positional parameters."""
    for node in _nodes(defined, ast.FunctionDef, at_line=False):
        first = min(n.lineno for n in (node, *node.decorator_list))
        assert defined is not None  # or there are no nodes
        if first <= defined.line <= node.lineno and node.name == name:
            return [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    return []


def _find_assignment(site: Place, name: str) -> _Value | None:
    """The last assignment to a variable above a line of the same function."""
    begin = max((x.lineno for x in _nodes(site, ast.FunctionDef)), default=0)
    found = [
        node
        for node in _nodes(site, ast.Assign, at_line=False)
        if begin <= node.lineno and (node.end_lineno or 0) < site.line
        if [t.id for t in node.targets if isinstance(t, ast.Name)] == [name]
    ]
    last = max(found, key=lambda node: node.lineno, default=None)
    return None if last is None else _Value(site.file, last.value)


def _find_entry(
    frames: Iterable[Place], made: _Value | None, path: str
) -> _Value | None:
    """What is written for the last part of a path, if it is once.

    For `solver.rtol` that is `1e-3` in `Solver(rtol=1e-3)`; for `state['loss']` it is
    `0.0` in `{"loss": 0.0}`. It is looked for in the lines of a call, and in what the
    variable was made with.
    """
    name = re.split(r"[.\[\]'\"]+", path.rstrip("]'\""))[-1]
    places = [(x.file, node) for x in frames for node in _nodes(x, ast.expr)]
    places += [(made.file, node) for node in ast.walk(made.node)] if made else []
    found: dict[int, _Value] = {}
    for file, node in places:
        if isinstance(node, ast.Call):
            pairs = [(k.arg, k.value) for k in node.keywords]
        elif isinstance(node, ast.Dict):
            keys = [getattr(key, "value", None) for key in node.keys]
            pairs = list(zip(keys, node.values, strict=True))
        else:
            continue
        found |= {id(value): _Value(file, value) for key, value in pairs if key == name}
    return next(iter(found.values())) if len(found) == 1 else None


def _without_cast(node: ast.expr) -> str:
    """`1.0` of `jnp.asarray(1.0)`."""
    match node:
        case ast.Call(_, [inner], []) if _callee(node) in ("array", "asarray"):
            return ast.unparse(inner)
        case _:
            return ast.unparse(node)
