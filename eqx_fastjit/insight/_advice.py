"""What to do about a cause: an edit of the user's own line, if that is known."""

import ast
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from eqx_fastjit._describe import is_below

from ._differences import ADVICE, Difference, key_advice, NEW_OBJECT, NEW_TEXT
from ._edits import (
    becomes_float,
    Edit,
    EDITS,
    fed_back_edit,
    field_advice,
    OF_A_CLASS,
    STRONG,
)
from ._source import syntax_tree


# A call that is longer than this is not written out again.
_MAX_CALL = 88

Wrap = Callable[[str], str]
# A file and a line of it.
Site = tuple[str, int]


class Call(NamedTuple):
    """A call of a function, as the source has it."""

    node: ast.Call
    # What is passed for each parameter.
    arguments: dict[str, ast.expr]
    # Of a method, what it is called on.
    receiver: str | None = None

    def argument(self, parameter: str) -> str | None:
        """The expression that is passed, if there is one."""
        if parameter == "self" and self.receiver is not None:
            return self.receiver
        value = self.arguments.get(parameter)
        return None if value is None else ast.unparse(value)

    def edited(self, wraps: dict[str, Wrap]) -> str:
        """The call with some arguments replaced; those alone if it is long."""
        texts: dict[ast.expr, str] = {}
        for parameter, wrap in wraps.items():
            old = self.arguments[parameter]
            texts[old] = wrap(_without_cast(old))
        new = {old: ast.parse(text, mode="eval").body for old, text in texts.items()}
        args = [new.get(x, x) for x in self.node.args]
        keywords = [
            ast.keyword(k.arg, new.get(k.value, k.value)) for k in self.node.keywords
        ]
        whole = ast.unparse(ast.Call(self.node.func, args, keywords))
        return whole if len(whole) <= _MAX_CALL else ", ".join(texts.values())


def find_nodes(
    file: str, kind: type[Any] | tuple[type[Any], ...], line: int | None = None
) -> Iterator[Any]:
    """All nodes of some kinds in a file, or at a line of it, outer ones first."""
    tree = syntax_tree(file)
    nodes: list[Any] = [] if tree is None else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, kind) and (
            line is None or node.lineno <= line <= (node.end_lineno or node.lineno)
        ):
            yield node


def find_call(site: Site | None, name: str, defined: Site | None) -> Call | None:
    """The call of a function at a line; `None` if there is none, or several.

    **Arguments:**

    - `site`: file and line.
    - `name`: the function's own name, without those of what it is in.
    - `defined`: file and first line of its definition, decorators included.
    """
    if site is None:
        return None
    calls = list(find_nodes(site[0], ast.Call, site[1]))
    found = [node for node in calls if _callee(node.func) == name]
    aliases: set[str] = set() if found else _aliases(site[0], name)
    found += [node for node in calls if _callee(node.func) in aliases]
    if len(found) != 1:
        return None
    (node,) = found
    names = parameters(defined, name)
    receiver = None
    if names[:1] == ["self"] and isinstance(node.func, ast.Attribute):
        names = names[1:]
        receiver = ast.unparse(node.func.value)
    known = itertools.takewhile(lambda x: not isinstance(x, ast.Starred), node.args)
    arguments: dict[str, ast.expr] = dict(zip(names, known, strict=False))
    arguments |= {k.arg: k.value for k in node.keywords if k.arg is not None}
    return Call(node, arguments, receiver)


def _aliases(file: str, name: str) -> set[str]:
    """Other names of a function, such as `self._step` in `self._step = jit(step)`."""
    out: set[str] = set()
    for node in find_nodes(file, ast.Assign):
        value = node.value
        parts = [*value.args] if isinstance(value, ast.Call) else [value]
        if name in map(_callee, parts):
            out |= {_callee(target) for target in node.targets}
    return out - {""}


def _callee(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def parameters(defined: Site | None, name: str) -> list[str]:
    """The names of a function's positional parameters."""
    if defined is None:
        return []
    for node in find_nodes(defined[0], (ast.FunctionDef, ast.Lambda)):
        is_def = isinstance(node, ast.FunctionDef)
        decorators = node.decorator_list if is_def else []
        first = min(n.lineno for n in (node, *decorators))
        if first <= defined[1] <= node.lineno and (not is_def or node.name == name):
            return [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    return []


def find_assignment(site: Site | None, name: str) -> ast.Assign | None:
    """The last assignment to a variable above a line of the same function."""
    if site is None:
        return None
    file, line = site
    scopes = [*find_nodes(file, ast.Module), *find_nodes(file, ast.FunctionDef, line)]
    for scope in reversed(scopes):  # the innermost comes last
        found = [
            n
            for n in _own_nodes(scope)
            if isinstance(n, ast.Assign) and (n.end_lineno or n.lineno) < line
            if [t.id for t in n.targets if isinstance(t, ast.Name)] == [name]
        ]
        if found:
            return max(found, key=lambda n: n.lineno)
        if isinstance(scope, ast.FunctionDef) and any(
            isinstance(x, ast.arg) and x.arg == name for x in ast.walk(scope.args)
        ):
            return None  # the caller has it, under any name
    return None


def _own_nodes(scope: ast.AST) -> Iterator[Any]:
    """All nodes of a module or function, without those of functions inside."""
    pending = list(ast.iter_child_nodes(scope))
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            pending += ast.iter_child_nodes(node)


def find_attribute(site: Site | None, leaf: str) -> ast.Assign | None:
    """Where the attribute that a path ends with is set; `None` if not at one place."""
    name = leaf.rpartition(".")[2]
    if site is None or name == leaf or not name.isidentifier():
        return None
    found = [
        n
        for n in find_nodes(site[0], ast.Assign)
        if [t.attr for t in n.targets if isinstance(t, ast.Attribute)] == [name]
    ]
    return found[0] if len(found) == 1 else None


class Item(NamedTuple):
    """An element of what is written out, as in `{"loss": 0.0}` or `State(loss=0.0)`."""

    value: ast.expr
    # What is before it: `"loss": `, `loss=`, or nothing in a list.
    name: str


def find_item(site: Site | None, name: str, rest: str) -> Item | None:
    """Where an element of a variable is written out; `None` if it is not.

    The assignment before the line counts. `rest` is the path from the variable, such as
    `['loss']` or `.state[0]`.
    """
    assigned, steps = find_assignment(site, name), _steps(rest)
    if steps is None:
        return None
    keys = [key for key, _ in steps]
    item = None if assigned is None else Item(assigned.value, "")
    for key in keys:
        item = item and _item(item.value, key)
    if item is None and keys and isinstance(keys[-1], str):
        item = _only_keyword(site, keys[-1])
    return item


def _steps(rest: str) -> list[tuple[Any, str]] | None:
    """The keys of a path from a variable, and each as it is written: `["loss"]`.

    `None` if it has others, as `<static>` is.
    """
    try:
        path: ast.expr = ast.parse(f"_{rest}", mode="eval").body
    except SyntaxError:
        return None
    out: list[tuple[Any, str]] = []
    while isinstance(path, ast.Subscript | ast.Attribute):
        if isinstance(path, ast.Attribute):
            key = path.attr
        else:
            key = getattr(path.slice, "value", None)
        out.append((key, ast.unparse(path).removeprefix(ast.unparse(path.value))))
        path = path.value
    return out[::-1]


def _passed(call: Call, leaf: str) -> tuple[ast.expr, str] | None:
    """What is passed for a leaf of an argument that is written out: `f((x, y))`.

    **Returns:** the expression, and the path from there; `None` if it is not.
    """
    steps = _steps(leaf.removeprefix(root_of(leaf))) or []
    node, reached = call.arguments.get(root_of(leaf)), 0
    for key, _ in steps:
        if node is None or (item := _item(node, key)) is None:
            break
        node, reached = item.value, reached + 1
    if node is None or not reached:
        return None
    return node, "".join(text for _, text in steps[reached:])


def _only_keyword(site: Site | None, name: str) -> Item | None:
    """A number that is passed as a keyword at one place of the file, and no other."""
    calls = () if site is None else find_nodes(site[0], ast.Call)
    found = [k for node in calls for k in node.keywords if k.arg == name]
    if len(found) != 1:
        return None
    number = ast.parse(_without_cast(found[0].value), mode="eval").body
    if isinstance(number, ast.UnaryOp):
        number = number.operand
    is_number = isinstance(number, ast.Constant) and type(number.value) in (int, float)
    return Item(found[0].value, f"{name}=") if is_number else None


def _item(node: ast.expr, key: Any) -> Item | None:
    if isinstance(node, ast.Dict):
        for k, value in zip(node.keys, node.values, strict=True):
            if isinstance(k, ast.Constant) and k.value == key:
                return Item(value, f"{ast.unparse(k)}: ")
    elif isinstance(node, ast.Tuple | ast.List):
        if isinstance(key, int) and key < len(node.elts):
            return Item(node.elts[key], "")
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg == key:
                return Item(keyword.value, f"{key}=")
    return None


# --- by kind -------------------------------------------------------------------------


def advice(
    kind: str,
    difference: Difference | None,
    *,
    site: Site | None = None,
    function: str = "",
    defined: Site | None = None,
    fed_back: bool = False,
    earlier: Site | None = None,
    differences: Iterable[Difference] = (),
) -> str:
    """What to do about a cause.

    **Arguments:**

    - `kind`: one of `ADVICE`.
    - `difference`: what differs, if anything does.
    - `site`, `function`, `defined`: as for `find_call`.
    - `fed_back`: whether the function itself has returned what has another dtype.
    - `earlier`: file and line of the call that this one differs from, if known.
    - `differences`: all of this call, of which several may need the same edit.

    **Returns:** a sentence or two, with the edited call where it can be written.
    """
    if difference is not None and kind == "config-churn":
        return f"Set `{difference.path}` once, before the first call."
    if difference is None or kind not in EDITS:
        return ADVICE[kind]
    if text := _without_edit(kind, difference):
        return text
    is_number = kind == "static-churn"
    make_edit = fed_back_edit if fed_back and not is_number else EDITS[kind]
    if (edit := make_edit(difference)) is None:
        return ADVICE[kind]
    alike = _alike(difference, edit, differences, make_edit)
    is_weak = kind == "weak-type"
    path, has_no_name, _ = difference.path.partition("<")
    if has_no_name:  # such as a leaf of an `eqx.nn.State`
        if not is_weak:
            return ADVICE[kind]
        path = path.removesuffix("[")
    elif is_weak and any(root_of(p) == root_of(path) for p in alike):
        path = root_of(path)
    if path != difference.path:
        edit = edit._replace(text=STRONG)
        alike = [p for p in alike if not is_below(p, path)]
    old, new = difference.old, difference.new
    was_weak = is_weak and old in ("True", "weak")
    turns_float = kind == "dtype-churn" and becomes_float(old, new)
    # The earlier call had what no later one will have.
    of_the_first = fed_back or was_weak or turns_float
    moved = earlier if of_the_first and earlier != site else None
    where = _where(
        path,
        edit.wrap,
        find_call(moved or site, function, defined),
        moved or site,
        # What is carried from call to call should be right from the beginning.
        from_the_first=was_weak or fed_back or kind == "dtype-churn",
        # Or it was, and is not any more.
        later=(is_number and not fed_back) or (is_weak and not was_weak),
    )
    if moved is not None and " in line " not in where:
        where = f"{where.removesuffix('.')} in line {moved[1]}."
    return f"{where} {edit.why}{and_for(alike)}"


def _alike(
    main: Difference,
    edit: Edit,
    differences: Iterable[Difference],
    make_edit: Callable[[Difference], Edit | None],
) -> list[str]:
    """The paths of all others that would make it compile again for the same reason."""
    return [
        d.path
        for d in differences
        if d.path != main.path and "<" not in d.path
        if (d.what, d.of) == (main.what, main.of)
        if (other := make_edit(d)) is not None
        # Two arrays may become the same dtype, from different ones.
        if (other.text == edit.text if d.what == "dtype" else other.why == edit.why)
    ]


def and_for(paths: list[str]) -> str:
    """That the others need the same edit."""
    if not paths:
        return ""
    names = [f"`{p}`" for p in paths[:3]]
    if len(paths) > 3:
        names.append(f"{len(paths) - 3} more")
    *first, last = names
    return f" The same goes for {', '.join(first)}{' and ' * bool(first)}{last}."


def _without_edit(kind: str, d: Difference) -> str | None:
    """Advice on what no cast would help."""
    if kind == "dtype-churn":
        return key_advice(d.old, d.new)
    if d.what == "object" and OF_A_CLASS.search(d.new):
        return NEW_OBJECT
    if d.old.endswith(" (str)") and d.new.endswith(" (str)"):
        return NEW_TEXT
    return field_advice(d) if d.of else None


def _where(
    leaf: str,
    wrap: Wrap,
    call: Call | None,
    site: Site | None,
    *,
    from_the_first: bool,
    later: bool,
) -> str:
    argument = None if call is None else call.argument(leaf)
    if call is not None and (written := _passed(call, leaf)) is not None:
        node, rest = written
        text = ast.unparse(node)
        if _is_name(text):  # as the caller has it
            argument, leaf, call = text + rest, text + rest, None
        elif not rest:
            return f"Replace `{text}` by `{wrap(_without_cast(node))}`."
    made = None
    if from_the_first:
        made = find_attribute(site, leaf)
        if argument is not None and argument.isidentifier():
            made = find_assignment(site, argument)
    try:
        if made is not None:
            text = f"{ast.unparse(made.targets[0])} = {wrap(_without_cast(made.value))}"
            ast.parse(text)
            return f"Write `{text}` in line {made.lineno}."
        if call is not None and argument is not None and leaf in call.arguments:
            text = call.edited({leaf: wrap})
            if argument.isidentifier() and text == wrap(argument):
                return f"Replace `{argument}` by `{text}`."  # of a long call
            return f"Write `{text}`."
    except SyntaxError:  # what is wrapped is no expression
        pass
    root = root_of(leaf)
    rest = leaf.removeprefix(root)
    # As the caller has it, if that is a name and no expression.
    passed = call and call.argument(root)
    if passed and _is_name(passed):
        root = passed
    if from_the_first and (item := find_item(site, root, rest)) is not None:
        text = f"{item.name}{wrap(_without_cast(item.value))}"
        return f"Write `{text}` in line {item.value.lineno}."
    made_at = "it is set" if later else f"`{root}` is created"
    there = f", where {made_at}" if rest else ""
    return f"Replace `{root}{rest}` by `{wrap(root + rest)}`{there}."


def _is_name(text: str) -> bool:
    """Of a variable, or of an attribute of one."""
    return all(part.isidentifier() for part in text.split("."))


def root_of(leaf: str) -> str:
    """The argument that a leaf is in."""
    return re.split(r"[.\[<]", leaf, maxsplit=1)[0]


def _without_cast(node: ast.expr) -> str:
    """`1.0` of `jnp.asarray(1.0)`."""
    match node:
        case ast.Call(func, [inner], []) if _callee(func) in ("array", "asarray"):
            return ast.unparse(inner)
        case _:
            return ast.unparse(node)


# --- of a function under `jax.jit` ---------------------------------------------------

_SHORT = re.compile(r"(bf|f|s|i|u|c)(\d+)")
_LONG = {"bf": "bfloat", "f": "float", "s": "int", "i": "int", "u": "uint"}


def _long_dtype(short: str) -> str:
    """`float32` for `f32`."""
    if (found := _SHORT.fullmatch(short)) is None:
        return "bool_" if short == "pred" else short
    return _LONG.get(found[1], "complex") + found[2]


def plain_advice(miss: Any, *, site: Site | None, defined: Site | None) -> str:
    """What to do about a cause that JAX's log reported (`doctor._plain.Miss`)."""
    leaf, old, new = miss.leaf, miss.old, miss.new
    if miss.kind == "dtype-churn":
        old, new = _long_dtype(old), _long_dtype(new)
    if (found := re.fullmatch(r"argument (\d+)", leaf)) is not None:
        names = parameters(defined, miss.name)
        leaf = names[int(found[1])] if int(found[1]) < len(names) else leaf
    difference = (
        Difference(leaf, "", old, new, _long_dtype(miss.dtype)) if leaf else None
    )
    text = advice(miss.kind, difference, site=site, function=miss.name, defined=defined)
    if miss.kind == "static-churn" and "jnp.asarray(" in text and leaf.isidentifier():
        # Otherwise, an array would be an error.
        text = f"Remove `{leaf}` from `static_argnames` or `static_argnums`. {text}"
    return text
