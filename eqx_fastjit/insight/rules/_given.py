"""What calls pass for each argument, by the source of their lines."""

import ast
from collections.abc import Iterator

from eqx_fastjit.insight.compare._table import Table
from eqx_fastjit.insight.record._leaves import argument_of
from eqx_fastjit.insight.record._reads import expressions_in
from eqx_fastjit.insight.record._why import line_of


def given_in(table: Table) -> dict[str, str]:
    """The expression of each argument, if that is known, and all calls have it."""
    found = [
        {name: ast.unparse(x) for name, x in arguments.items()}
        for arguments in calls_in(table)
    ]
    return {
        name: text
        for name, text in (found[0] if found else {}).items()
        # Where calls pass several expressions, it has its own name.
        if all(x.get(name) == text for x in found)
    }


def calls_in(table: Table) -> Iterator[dict[str, ast.expr]]:
    """The arguments of each call in the source, by the names of parameters."""
    event = table.rows[-1].event
    paths = [x.path for x in event.signature if x.kind != "configuration"]
    names = [x for x in paths if x == argument_of(x) != event.function.name]
    for line in {x for row in table.rows if (x := line_of(row.event))}:
        for node in expressions_in(line.file).values():
            if not isinstance(node, ast.Call) or node.lineno != line.line:
                continue
            match node.func:
                case ast.Name(id=name):
                    passed = node.args
                case ast.Attribute(value=owner, attr=name):
                    is_method = names[:1] == ["self"]
                    passed = [owner, *node.args] if is_method else node.args
                case _:
                    continue
            if name == event.function.name:
                is_starred = any(isinstance(x, ast.Starred) for x in passed)
                arguments = {} if is_starred else dict(zip(names, passed, strict=False))
                yield arguments | {x.arg or "": x.value for x in node.keywords}
