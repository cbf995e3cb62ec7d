"""The user's own lines: what is passed to a function, and where that was made."""

import ast
import functools
import linecache
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from eqx_fastjit._place import Place


# A call that is longer than this is not written out again.
_MAX_CALL = 88


class Call(NamedTuple):
    """A call of a function, as the source has it."""

    node: ast.Call
    # What is passed for each parameter.
    arguments: dict[str, ast.expr]

    def edited(self, parameter: str, text: str) -> str:
        """The call with another argument; that alone if the call is long."""
        new = ast.parse(text, mode="eval").body
        old = self.arguments[parameter]
        args = [new if x is old else x for x in self.node.args]
        keywords = [
            ast.keyword(k.arg, new if k.value is old else k.value)
            for k in self.node.keywords
        ]
        whole = ast.unparse(ast.Call(self.node.func, args, keywords))
        return whole if len(whole) <= _MAX_CALL else text


def source_line(place: Place | None) -> str:
    """The text of a line; empty if it is not known."""
    return "" if place is None else linecache.getline(place.file, place.line).strip()


@functools.lru_cache(maxsize=32)
def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # of another language, say
        return None


def _tree(place: Place | None) -> ast.Module | None:
    lines = linecache.getlines(place.file) if place is not None else []
    return _parsed("".join(lines)) if lines else None


def _nodes(place: Place | None, kind: Any, at_line: bool = True) -> Iterator[Any]:
    """The nodes of a kind in a file, or at a line of it, outer ones first."""
    tree = _tree(place)
    nodes: list[Any] = list(ast.walk(tree)) if tree is not None else []
    for node in nodes:
        if isinstance(node, kind):
            first, last = node.lineno, node.end_lineno or node.lineno
            if not at_line or (place is not None and first <= place.line <= last):
                yield node


def find_call(site: Place | None, name: str, defined: Place | None) -> Call | None:
    """The call of a function at a line; `None` if there is none, or several.

    **Arguments:**

    - `site`: the line.
    - `name`: the function's own name, without those of what it is in.
    - `defined`: the first line of its definition, decorators included.
    """
    calls = list(_nodes(site, ast.Call))
    found = [node for node in calls if _callee(node.func) == name]
    if not found:
        aliases = _aliases(site, name)
        found = [node for node in calls if _callee(node.func) in aliases]
    if len(found) != 1:
        return None
    (node,) = found
    names = parameters(defined, name)
    arguments: dict[str, ast.expr] = {}
    if names[:1] == ["self"] and isinstance(node.func, ast.Attribute):
        arguments["self"] = node.func.value
        names = names[1:]
    for parameter, value in zip(names, node.args, strict=False):
        if isinstance(value, ast.Starred):
            break
        arguments[parameter] = value
    arguments |= {k.arg: k.value for k in node.keywords if k.arg is not None}
    return Call(node, arguments)


def _aliases(site: Place | None, name: str) -> set[str]:
    """Other names of a function, such as `self._step` in `self._step = jit(step)`."""
    out: set[str] = set()
    for node in _nodes(site, ast.Assign, at_line=False):
        value = node.value
        parts = [*value.args] if isinstance(value, ast.Call) else [value]
        if name in map(_callee, parts):
            out |= {_callee(target) for target in node.targets}
    return out - {""}


def _callee(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def parameters(defined: Place | None, name: str) -> list[str]:
    """The names of a function's positional parameters."""
    for node in _nodes(defined, (ast.FunctionDef, ast.Lambda), at_line=False):
        is_def = isinstance(node, ast.FunctionDef)
        decorators = node.decorator_list if is_def else []
        first = min(n.lineno for n in (node, *decorators))
        assert defined is not None  # or there are no nodes
        if first <= defined.line <= node.lineno and (not is_def or node.name == name):
            return [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    return []


def find_assignment(site: Place | None, name: str) -> ast.Assign | None:
    """The last assignment to a variable above a line of the same function."""
    if site is None or (tree := _tree(site)) is None:
        return None
    functions = list(_nodes(site, ast.FunctionDef))
    scope = functions[-1] if functions else tree  # the innermost comes last
    found = [
        node
        for node in _own_nodes(scope)
        if isinstance(node, ast.Assign) and (node.end_lineno or 0) < site.line
        if [t.id for t in node.targets if isinstance(t, ast.Name)] == [name]
    ]
    return max(found, key=lambda node: node.lineno, default=None)


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a module or function, without those of functions inside."""
    pending = list(ast.iter_child_nodes(scope))
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            pending += ast.iter_child_nodes(node)


def find_item(site: Place | None, path: str) -> ast.expr | None:
    """Where an element of a variable is written out, as in `state = {"loss": 0.0}`.

    `path` leads to it from the variable, such as `state["loss"]`.
    """
    try:
        node: ast.expr = ast.parse(path, mode="eval").body
    except SyntaxError:
        return None
    keys: list[Any] = []
    while isinstance(node, ast.Subscript | ast.Attribute):
        if isinstance(node, ast.Attribute):
            keys.append(node.attr)
        else:
            keys.append(getattr(node.slice, "value", None))
        node = node.value
    if not isinstance(node, ast.Name) or not keys:
        return None
    assigned = find_assignment(site, node.id)
    found = None if assigned is None else assigned.value
    for key in reversed(keys):
        found = None if found is None else _item(found, key)
    return found


def find_keyword(frames: Sequence[Place], path: str) -> ast.expr | None:
    """What is passed as a keyword with the name of an attribute, in one of the lines.

    For `solver.rtol` that is `1e-3`, if one of them has `Solver(rtol=1e-3)`.
    """
    name = path.rpartition(".")[2]
    for place in frames:
        calls = _nodes(place, ast.Call)
        found = [k.value for node in calls for k in node.keywords if k.arg == name]
        if len(found) == 1:
            return found[0]
    return None


def _item(node: ast.expr, key: Any) -> ast.expr | None:
    if isinstance(node, ast.Dict):
        for k, value in zip(node.keys, node.values, strict=True):
            if isinstance(k, ast.Constant) and k.value == key:
                return value
    elif isinstance(node, ast.Tuple | ast.List):
        if isinstance(key, int) and key < len(node.elts):
            return node.elts[key]
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg == key:
                return keyword.value
    return None


def without_cast(node: ast.expr) -> str:
    """`1.0` of `jnp.asarray(1.0)`."""
    match node:
        case ast.Call(func, [inner], []) if _callee(func) in ("array", "asarray"):
            return ast.unparse(inner)
        case _:
            return ast.unparse(node)
