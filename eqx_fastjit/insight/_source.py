"""The user's own lines, and what to write in place of what one of them passes."""

import ast
import functools
import itertools
import linecache
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any, NamedTuple

from eqx_fastjit._facts import Place

from ._events import Event
from ._words import show_place


def source_line(place: Place | None) -> str:
    """The text of a line; empty if it is not known."""
    return "" if place is None else linecache.getline(place.file, place.line).strip()


def expression_at(code: CodeType, instruction: int) -> str:
    """The source of the expression that an instruction belongs to, in a line.

    Empty if it is not known.
    """
    positions = itertools.islice(code.co_positions(), instruction // 2, None)
    first, last, start, end = next(positions)
    if first is None or last is None:
        return ""
    # Columns count bytes.
    file = code.co_filename
    lines = [linecache.getline(file, n).encode() for n in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return " ".join(b"".join(lines).decode(errors="replace").split())


class Edit(NamedTuple):
    """What to write: code alone, and a sentence that ends with a space."""

    code: str
    sentence: str


def edit_to_array(
    event: Event,
    frames: tuple[Place, ...],
    path: str,
    dtype: str | None,
    owner: Any,
    pattern: str = "{}",
) -> Edit:
    """What makes an array of a leaf.

    **Arguments:**

    - `event`: a compilation of the function.
    - `frames`: the line that calls it, and the lines that led there.
    - `path`: of the leaf.
    - `dtype`: that of the array, or `None` for JAX's default.
    - `owner`: the leaf of the node that it is in, or `None` of an argument.
    - `pattern`: what to make of the value first.
    """
    cast = "" if dtype is None else f", dtype=jnp.{dtype}"
    if owner is not None:
        where = show_place(frames[0] if frames else None)
        code = f"jnp.asarray({pattern.format(path)}{cast})"
        if not owner.is_module:
            where = f"where `{path}` is set, for the call at {where}"
            return Edit(code, f"Write `{code}` {where}. ")
        field, cls = path.rpartition(".")[2], owner.type.rpartition(".")[2]
        code = f"{field}=jnp.asarray({pattern.format('...')}{cast})"
        text = f"Write `{code}` where the `{cls}` is made, for the call at {where}. "
        return Edit(code, text)
    site, call = _site(frames, event)
    passed = None if call is None else _arguments(call, event).get(path)
    if passed is not None:
        code = f"jnp.asarray({pattern.format(ast.unparse(passed))}{cast})"
        text = f"Write `{code}`"
    else:  # not by its own name, which may mean something else there
        code = f"jnp.asarray({pattern.format('...')}{cast})"
        text = f"Write `{code}` around what is passed"
    text += f" for `{path}` in the call at {show_place(site)}"
    if annotation := _annotation(event.function.place, path):
        text += f", and annotate it `{path}: {annotation}`"
    return Edit(code, f"{text}. ")


class Made(NamedTuple):
    """Where an argument was made: by which function, and of what."""

    place: Place
    factory: str
    first: str


def made_by(event: Event, path: str) -> Made | None:
    """The call that made what is passed for an argument, if that is in sight."""
    site, call = _site(event.frames, event)
    value = None if call is None else _arguments(call, event).get(path)
    if site is None or value is None:
        return None
    if isinstance(value, ast.Name):
        value = _assigned(site, value.id)
    if not isinstance(value, ast.Call):
        return None
    first = [*value.args, *(k.value for k in value.keywords)][:1]
    factory, text = ast.unparse(value.func), "".join(map(ast.unparse, first))
    return Made(site._replace(line=value.lineno), factory, text)


def set_at(frames: tuple[Place, ...], path: str, cls: str) -> list[Place]:
    """The lines that set a field, in the files of those that lead to a call.

    By its name: as a keyword, as an attribute, or by `tree_at`. `cls` is the name of
    the class: others may have such a field, too.
    """
    field, found = path.rpartition(".")[2], list[Place]()
    if field == path:
        return []
    for frame in {x.file: x for x in frames}.values():
        nodes: list[Any] = [x for x in nodes_of(frame.file) if _sets(x, field, cls)]
        found += [frame._replace(line=n) for n in sorted({x.lineno for x in nodes})]
    return found


def _sets(node: Any, field: str, cls: str) -> bool:
    if isinstance(node, ast.Attribute):  # but in a class of its own
        is_own = getattr(node.value, "id", "") == "self"
        return node.attr == field and isinstance(node.ctx, ast.Store) and not is_own
    if not isinstance(node, ast.Call):
        return False
    if (name := _name(node)) == "tree_at":
        return any(getattr(x, "attr", "") == field for x in ast.walk(node))
    # A function may make it; another class does not.
    may_be = name == cls or name[:1].islower()
    return may_be and any(k.arg == field for k in node.keywords)


def _assigned(site: Place, name: str) -> ast.expr | None:
    """What a variable was last set to, in the lines above one."""
    found: list[ast.expr] = []
    for node in _nodes(site, ast.Assign):
        (target, *_), value = node.targets, node.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=False))
        for left, right in pairs:
            is_above = right.lineno <= site.line
            if is_above and isinstance(left, ast.Name) and left.id == name:
                found.append(right)
    return max(found, key=lambda x: x.lineno, default=None)


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


def _site(
    frames: tuple[Place, ...], event: Event
) -> tuple[Place | None, ast.Call | None]:
    """The line that passes the arguments, and its call, if there is just one.

    A decorator that hands on what it was given passes nothing of its own.
    """
    for site in frames:
        calls = [node for node in _nodes(site, ast.Call) if _has(node, site)]
        named = [x for x in calls if _name(x) == event.function.name]
        # Under another name, it is a decorator's if all is handed on.
        others = [x for x in calls if any(k.arg is None for k in x.keywords)]
        if not any(map(_hands_on, named or others)):
            return site, named[0] if len(named) == 1 else None
    return (frames[0] if frames else None), None


def _name(call: ast.Call) -> str:
    return getattr(call.func, "id", "") or getattr(call.func, "attr", "")


def _hands_on(call: ast.Call) -> bool:
    """Whether all that it passes was given to whoever calls."""
    is_starred = [isinstance(x, ast.Starred) for x in call.args]
    return (
        any(is_starred)
        and all(is_starred)
        and all(k.arg is None for k in call.keywords)
    )


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
    node = _definition(place)
    if node is None:
        return [], False
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    return names, bool(node.args.defaults)


def _definition(place: Place | None, kind: Any = ast.FunctionDef) -> Any:
    for node in _nodes(place, kind):
        if place is not None and _first_line(node) == place.line:
            return node
    return None


def assigned_around(place: Place | None) -> list[str]:
    """What a function reads that the loop around its definition assigns, by name."""
    own = _definition(place, ast.FunctionDef | ast.Lambda)
    if own is None:
        return []
    inside = {*ast.walk(own)}
    around: set[ast.AST] = set()
    for loop in _nodes(place, ast.For | ast.While):
        if own in (nodes := {*ast.walk(loop)}):
            around |= nodes - inside
    return sorted(_free(inside) & _names(around, ast.Store))


def _names(nodes: Iterable[ast.AST], context: type[ast.expr_context]) -> set[str]:
    """The variables that are read there, or assigned."""
    names = (x for x in nodes if isinstance(x, ast.Name))
    return {x.id for x in names if isinstance(x.ctx, context)}


def is_index(place: Place, text: str) -> bool:
    """Whether an expression of a line gives an index or a length, by its own text.

    Itself, or by a variable of the function that it is assigned to.
    """
    try:
        wanted = ast.dump(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    own = [
        x for x in _nodes(place, ast.expr) if _has(x, place) and ast.dump(x) == wanted
    ]
    made = (x for x in _nodes(place, ast.Assign) if {*ast.walk(x.value)} & {*own})
    names = {x.id for node in made for x in node.targets if isinstance(x, ast.Name)}
    indices = [x.slice for x in _nodes(place, ast.Subscript)]
    calls = (x for x in _nodes(place, ast.Call) if _name(x) == "range")
    indices += [arg for x in calls for arg in x.args]
    used = {x for node in indices for x in ast.walk(node)}
    return bool(used & {*own} or names & _names(used, ast.Load))


_COMPREHENSIONS = ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp
# What reads values when it is called, and modules that compute with them.
_READS = {"float", "int", "bool", "print", "item", "tolist"}
_NUMPY = {"np", "numpy", "onp"}


def is_in_comprehension(place: Place) -> bool:
    """Whether a line is a part of a comprehension."""
    return any(_has(x, place) for x in _nodes(place, _COMPREHENSIONS))


def can_be_jitted(place: Place) -> bool:
    """Whether the function around a line can be jitted as it is, by its text.

    It has no loop and no `if`, reads no values, and writes to nothing; nor is it a
    method of a plain object, which is static, or does it read what a loop changes.
    """
    name = place.function.rpartition(".")[2]
    defined = [
        x for x in _nodes(place, ast.FunctionDef) if x.name == name and _has(x, place)
    ]
    if not defined:
        return False
    function = max(defined, key=lambda x: x.lineno)
    parameters = [*function.args.posonlyargs, *function.args.args]
    if [x.arg for x in parameters[:1]] == ["self"]:
        classes = [x for x in _nodes(place, ast.ClassDef) if function in x.body]
        bases = [ast.unparse(base) for x in classes for base in x.bases]
        if not any("Module" in x for x in bases):
            return False
    inside = {*ast.walk(function)}
    return not any(map(_is_of_python, inside)) and not _free(inside) & _changing(place)


def _has(node: Any, place: Place) -> bool:
    return node.lineno <= place.line <= node.end_lineno


def _is_of_python(node: ast.AST) -> bool:
    """Whether it loops, decides, reads a value or does something else than compute."""
    if isinstance(node, ast.Expr):  # `log.append(x)`
        return not isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Attribute | ast.Subscript):
        return isinstance(node.ctx, ast.Store)
    if isinstance(node, ast.Call):
        return _name(node) in _READS
    if isinstance(node, ast.Name):
        return node.id in _NUMPY
    return isinstance(node, _STATEMENTS)


_STATEMENTS = (
    *(ast.For, ast.While, ast.If, ast.IfExp),
    *(ast.Yield, ast.Global, ast.Nonlocal, *_COMPREHENSIONS),
)


def _free(inside: set[ast.AST]) -> set[str]:
    """The variables that nodes of a function read, and that are not its own."""
    own = {x.arg for x in inside if isinstance(x, ast.arg)} | _names(inside, ast.Store)
    return _names(inside, ast.Load) - own


def _changing(place: Place) -> set[str]:
    """The variables of a file that a loop assigns, or of which a part is assigned."""
    found: set[str] = set()
    for loop in _nodes(place, ast.For | ast.While):
        found |= _names(ast.walk(loop), ast.Store)
    for node in _nodes(place, ast.Attribute | ast.Subscript):
        if isinstance(node.ctx, ast.Store):
            found |= _names(ast.walk(node.value), ast.Load)
    for node in _nodes(place, ast.Global):
        found |= {*node.names}
    return found


def _first_line(node: Any) -> int:
    """Of a definition, its first decorator's."""
    return min(x.lineno for x in (node, *getattr(node, "decorator_list", ())))


# Packages that check annotations when a function is called.
_CHECKERS = {"jaxtyping", "beartype", "typeguard"}
_ANNOTATIONS = {"float": "Float", "int": "Int", "complex": "Complex"}


def _annotation(place: Place | None, name: str) -> str:
    """What a parameter has to be annotated by, for an array to be passed."""
    node = _definition(place)
    if place is None or node is None:
        return ""
    modules = {getattr(x, "module", None) for x in _nodes(place, ast.ImportFrom)}
    modules |= {a.name for x in _nodes(place, ast.Import) for a in x.names}
    if not _CHECKERS & {str(x).partition(".")[0] for x in modules}:
        return ""
    found = [x for x in (*node.args.args, *node.args.kwonlyargs) if x.arg == name]
    kinds = [getattr(x.annotation, "id", "") for x in found]
    return "".join(f'{_ANNOTATIONS[x]}[Array, ""]' for x in kinds if x in _ANNOTATIONS)
