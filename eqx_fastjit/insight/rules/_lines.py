"""The lines of edits: those that make what differs, by the source of what calls."""

import ast
from collections.abc import Iterable, Sequence

from eqx_fastjit._facts import Place
from eqx_fastjit.insight.compare._objects import Object
from eqx_fastjit.insight.record._events import Event
from eqx_fastjit.insight.record._flow import evaluated_by, nodes_of
from eqx_fastjit.insight.record._leaves import argument_of
from eqx_fastjit.insight.record._reads import expressions_in, nodes_in


def line_of_edit(found: Object) -> Place | None:
    """The line that makes what differs, if it is known."""
    rows = found.table.rows
    if found.kind == "function":
        return rows[-1].event.function.place
    if found.kind == "weak":
        return _line_of_weak(found)
    if found.kind not in ("callable", "object", "optimiser"):
        return None

    made = _made_at(rows[-1].event, argument_of(found.path))
    places = definitions(found)
    return made or (places[0] if len(places) == 1 else None)


def definitions(found: Object) -> list[Place]:
    """The lines that define the functions that an object was."""
    places = [x.place for x in found.leaves if x and found.kind == "callable"]
    return list(dict.fromkeys(x for x in places if x is not None))


def _line_of_weak(found: Object) -> Place | None:
    """The line that makes an array with a weak type: in a call before, or outside."""
    path, returned = found.paths[0], dict[str, Place]()
    for row in found.table.rows:
        leaf = row.leaves.get(path)
        if leaf is not None and leaf.weak_type:
            return returned.get(leaf.text) or _made_at(row.event, argument_of(path))
        for weak in row.program.weak if row.program else ():
            returned[weak.text] = weak.place
    return None


def _made_at(event: Event, name: str) -> Place | None:
    """The line that makes what a call passes for an argument, if that is known.

    It assigns the variable that is passed, in the function that calls, or in one around
    it from which the variable comes as an argument.
    """
    function, parameters = event.function.name, _parameters(event)
    for line in event.frames:
        passed = _arguments_at(line, function, parameters).get(name)
        if not isinstance(passed, ast.Name):
            is_made = isinstance(passed, ast.Call)
            return line._replace(line=passed.lineno) if is_made else None

        name = passed.id
        around = _function_around(line)
        scope = nodes_in(line.file)[0] if around is None else around
        if assigned := _assignments(nodes_of(scope), name):
            return line._replace(line=assigned[0]) if len(assigned) == 1 else None
        if around is None:
            return None
        function, parameters = around.name, [x.arg for x in around.args.args]
    return None


def _parameters(event: Event) -> list[str]:
    """The names of the parameters of the function of an event."""
    paths = [x.path for x in event.signature if x.kind != "configuration"]
    return [x for x in paths if x == argument_of(x) != event.function.name]


def _arguments_at(
    line: Place, function: str, names: Sequence[str]
) -> dict[str, ast.expr]:
    """The arguments of the one call of a function in a line, by the names of these."""
    here = (x for x in expressions_in(line.file).values() if x.lineno == line.line)
    calls = (x for x in here if isinstance(x, ast.Call))
    found = [x for x in calls if ast.unparse(x.func).rpartition(".")[2] == function]
    if len(found) != 1:
        return {}

    (call,) = found
    passed = call.args
    if isinstance(call.func, ast.Attribute) and names[:1] == ["self"]:
        passed = [call.func.value, *passed]
    is_starred = any(isinstance(x, ast.Starred) for x in passed)
    arguments = {} if is_starred else dict(zip(names, passed, strict=False))
    return arguments | {x.arg or "": x.value for x in call.keywords}


def _function_around(line: Place) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The innermost function that a line is in."""
    found = [
        x
        for x in nodes_in(line.file)
        if isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef)
        and x.body[0].lineno <= line.line <= (x.end_lineno or 0)
    ]
    return max(found, key=lambda x: x.lineno, default=None)


def _assignments(nodes: Iterable[ast.AST], name: str) -> list[int]:
    """The lines that define a variable, but for those that make it of itself."""
    found: list[int] = []
    for node in nodes:
        if isinstance(node, ast.stmt) and not isinstance(node, ast.AugAssign):
            names = (x for x in evaluated_by(node) if isinstance(x, ast.Name))
            uses = {type(x.ctx) for x in names if x.id == name}
            if uses == {ast.Store} or getattr(node, "name", None) == name:
                found.append(node.lineno)
    return found
