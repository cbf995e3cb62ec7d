"""The user's own lines, and what to write in place of what one of them passes."""

import ast
import functools
import linecache
import re
from collections.abc import Iterator
from typing import Any

from eqx_fastjit._facts import Place

from ._events import Event
from ._words import show_place


def source_line(place: Place | None) -> str:
    """The text of a line; empty if it is not known."""
    return "" if place is None else linecache.getline(place.file, place.line).strip()


def root_of(path: str) -> str:
    """The argument that a path begins with: `batch` of `batch['x'][0]`."""
    return re.split(r"[.\[<]", path, maxsplit=1)[0]


def edit(event: Event, frames: tuple[Place, ...], path: str, dtype: str | None) -> str:
    """What makes an array of a leaf, in a sentence that ends with a space.

    **Arguments:**

    - `event`: a compilation of the function.
    - `frames`: the line that calls it, and the lines that led there.
    - `path`: of the leaf.
    - `dtype`: that of the array, or `None` for JAX's default.
    """
    cast = "" if dtype is None else f", dtype=jnp.{dtype}"
    text = f"jnp.asarray({path}{cast})"
    if root_of(path) != path:
        # Where that is nobody knows, but maybe who called the caller.
        where = ", from ".join([show_place(x) for x in frames[:2] or (None,)])
        out = f"Write `{text}` where `{path}` is set, for the call at {where}. "
        if not path.endswith("]"):
            out += "If its field has `static=True`, remove that. "
        return out
    site = frames[0] if frames else None
    call = _find_call(site, event)
    passed = None if call is None else _arguments(call, event).get(path)
    if passed is not None:
        text = f"Write `jnp.asarray({ast.unparse(passed)}{cast})`"
    else:  # not by its own name, which may mean something else there
        text = f"Write `jnp.asarray(...{cast})` around what is passed"
    return f"{text} for `{path}` in the call at {show_place(site)}. "


@functools.lru_cache(maxsize=32)
def _parsed(source: str) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(source)))
    # Of code that is nested too deeply for the parser; or of no Python.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def nodes_of(file: str) -> list[ast.AST]:
    """All nodes of a source file, outer ones first; none if it cannot be parsed."""
    return _parsed("".join(linecache.getlines(file)))


def _nodes(place: Place | None, kind: Any) -> Iterator[Any]:
    """The nodes of a kind in the file of a place."""
    nodes = [] if place is None else nodes_of(place.file)
    return (x for x in nodes if isinstance(x, kind))


def _find_call(site: Place | None, event: Event) -> ast.Call | None:
    """The call of a function at a line; `None` if there is none, or several."""
    name = event.function.qualname.rpartition(".")[2]
    found = [
        node
        for node in _nodes(site, ast.Call)
        if site is not None and node.lineno <= site.line <= (node.end_lineno or 0)
        if name in (getattr(node.func, "id", ""), getattr(node.func, "attr", ""))
    ]
    return found[0] if len(found) == 1 else None


def _arguments(call: ast.Call, event: Event) -> dict[str, ast.expr]:
    """What a call passes for each parameter, as far as its text leaves no doubt.

    It does not say whether the function is bound: to an instance, to a class, or by
    `functools.partial`. The number of arguments may.
    """
    keywords = {k.arg: k.value for k in call.keywords if k.arg is not None}
    names, has_defaults = _parameters(event.function.place)
    n_missing = len(names) - len(call.args) - len(keywords.keys() & {*names})
    is_attribute = isinstance(call.func, ast.Attribute)
    if n_missing == 1 and is_attribute and not has_defaults:
        del names[0]  # the instance
    elif n_missing != 0 or any(isinstance(x, ast.Starred) for x in call.args):
        return keywords
    return dict(zip(names, call.args, strict=False)) | keywords


def _parameters(place: Place | None) -> tuple[list[str], bool]:
    """The positional parameters of a function, and whether any has a default."""
    for node in _nodes(place, ast.FunctionDef):
        first = min(n.lineno for n in (node, *node.decorator_list))
        if place is not None and first == place.line:
            names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
            return names, bool(node.args.defaults)
    return [], False
