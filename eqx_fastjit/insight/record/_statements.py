"""Statements of the user's source: which one a frame is at, and in which loop."""

import ast
import collections
import functools
import itertools
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import NamedTuple

from eqx_fastjit._facts import is_written_by_user, Place
from eqx_fastjit.insight._words import shortened

from ._flow import CONDITIONS, evaluated_by, Flow, names_in
from ._reads import expressions_in, nodes_in, OF_AVAL
from ._samples import Position


class Statement(NamedTuple):
    """A statement, or the head of a compound one."""

    place: Place
    # Its source, in one short line.
    text: str = ""
    # The first line of the innermost loop around it, in its function; 0 if none.
    loop: int = 0
    # The first line of the innermost branch that it is in, such as an `if`, within the
    # loop; 0 if each iteration runs it.
    branch: int = 0
    # Whether it is in a class that is a Module, or what a call of an object runs.
    is_of_model: bool = False
    # Whether nothing of its function runs after it.
    is_last: bool = False
    # The names that it reads several times; and whether its targets have none of these.
    # (`self.model = step(self.model)` reads `self` twice.)
    reads_again: frozenset[str] = frozenset()
    reads_once: bool = True
    # Whether it makes arrays of JAX of the same variables in each iteration.
    moves_the_same: bool = False
    # Whether it has a comprehension; and what one reads item by item, such as `xs` in
    # `[float(x) for x in xs]`.
    has_loop: bool = False
    read_by_items: str = ""
    # Whether it has `x.at[i]`, as in `x.at[i].set(y)`.
    sets_part: bool = False
    # Whether what it reads decides what follows: it is the head of an `if`, a `while`
    # or an `assert`, or assigns a variable that decides. And whether it only adds that
    # to a variable which decides nothing, as in `total += float(loss)`.
    decides: bool = False
    only_adds: bool = False
    # Whether its function, but no loop of it, returns what it computes.
    is_returned: bool = False
    # Whether its iterations could run at once, as none needs what another one computes.
    may_be_at_once: bool = False

    @property
    def around(self) -> Place:
        """The first line of that loop; else of its own."""
        return self.place._replace(line=self.loop or self.place.line)


def users_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of the user's own code, innermost first."""
    while frame is not None:
        if is_written_by_user(frame.f_code):
            yield frame
        frame = frame.f_back


@functools.lru_cache(maxsize=1 << 16)
def place_of(position: Position) -> Place:
    """The line of a position."""
    code = position.code
    line, *_ = location_of(position)
    return Place(code.co_filename, line or code.co_firstlineno, code.co_qualname)


@functools.lru_cache(maxsize=1 << 16)
def expression_of(position: Position) -> ast.expr | None:
    """The expression that an instruction belongs to, if it is known."""
    return expressions_in(position.code.co_filename).get(location_of(position))


@functools.lru_cache(maxsize=1 << 16)
def statement_of(position: Position) -> Statement:
    """The statement of a position; a line alone where there is no source."""
    return statement_at(place_of(position))


@functools.lru_cache(maxsize=1 << 14)
def statement_at(place: Place) -> Statement:
    """The statement of a line; the line alone where there is no source."""
    module = next(iter(nodes_in(place.file)), None)
    function = _named(place.function)
    found = None if module is None else _statements_in(module).get(place.line)
    if found is None:
        return Statement(place)
    return found._replace(place=Place(place.file, found.place.line, function))


def in_innermost_loop(statements: Iterable[Statement]) -> Statement | None:
    """The first of some statements that is in a loop, innermost first.

    What calls a model is to be edited, rather than its own loop over its layers. Where
    it is in no other loop, that may be a comprehension.
    """
    statements = [*statements]
    outside = [x for x in statements if not x.is_of_model]
    in_loops = (x for x in outside if x.loop)
    comprehensions = (x for x in outside if x.has_loop)
    of_models = (x for x in statements if x.loop)
    return next(itertools.chain(in_loops, comprehensions, of_models), None)


def _named(function: str) -> str:
    """The innermost function with a name: of a `lambda`, that which defines it."""
    parts = function.split(".")
    while parts and parts[-1].startswith("<"):
        parts.pop()
    return ".".join(parts) or "<module>"


def location_of(position: Position) -> tuple[int | None, ...]:
    """First and last line, and the columns, as `code.co_positions` has them.

    In a library, the first line of the code alone.
    """
    if position.instruction < 0:
        return (position.code.co_firstlineno,)
    number = position.instruction // 2
    return next(itertools.islice(position.code.co_positions(), number, None))


# What makes an array of NumPy into one of JAX.
MOVING = ("asarray", "array", "device_put")

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_BRANCHES = (ast.If, ast.ExceptHandler)
_JUMPS = (ast.Break, ast.Continue, ast.Return, ast.Raise)
# What may run code of its own after a `return` in it.
_MAY_GO_ON = (ast.Try, ast.TryStar, ast.With, ast.AsyncWith)


class _Around(NamedTuple):
    """What a piece of syntax is in, within its function."""

    loop: ast.stmt | None
    # The first line of a branch, or 0.
    branch: int
    is_of_model: bool
    # Whether something may run after a `return` in it.
    may_go_on: bool
    # How values flow in the innermost loop, or the function.
    flow: Flow


@functools.lru_cache(maxsize=16)
def _statements_in(module: ast.AST) -> dict[int, Statement]:
    """The innermost statement of each line, of a file and function to be named."""
    found: dict[int, Statement] = {}
    modules = {name for x in ast.walk(module) for name in _modules_imported_by(x)}

    def visit(node: ast.AST, around: _Around) -> None:
        # Its head runs in each iteration, but for what a `for` iterates over.
        if isinstance(node, _LOOPS):
            around = around._replace(loop=node, branch=0, flow=Flow(node, modules))
        # (Of `if float(x) < 1: break` in a line, the head has what is evaluated.)
        is_jump = isinstance(node, _JUMPS) and node.lineno == around.branch
        if isinstance(node, ast.stmt) and not is_jump:
            here = _statement(node, around)
            last = node.end_lineno or node.lineno
            found.update(dict.fromkeys(range(node.lineno, last + 1), here))
        if isinstance(node, _FUNCTIONS):  # its body is in no loop
            is_model = around.is_of_model or _is_model(node)
            around = _Around(None, 0, is_model, False, Flow(node, modules))

        if isinstance(node, _MAY_GO_ON):
            around = around._replace(may_go_on=True)
        if isinstance(node, _BRANCHES):
            around = around._replace(branch=node.lineno)
        if isinstance(node, ast.match_case):
            around = around._replace(branch=node.pattern.lineno)
        others = node.orelse if isinstance(node, ast.If) else []
        for child in ast.iter_child_nodes(node):
            branch = others[0].lineno if child in others else around.branch
            visit(child, around._replace(branch=branch))

    try:
        visit(module, _Around(None, 0, False, False, Flow(module, modules)))
    except RecursionError:  # code that is nested too deeply
        return {}
    return found


def _modules_imported_by(node: ast.AST) -> set[str]:
    """The variables that are modules then, as far as that is known."""
    match node:
        case ast.Import(names=names):
            found = names
        case ast.ImportFrom(module="jax" | "jax.experimental", names=names):
            found = names
        case _:
            found = []
    return {(x.asname or x.name).partition(".")[0] for x in found}


def _is_model(node: ast.AST) -> bool:
    """Whether it is a class that is a Module, or what a call of an object runs."""
    bases = map(ast.unparse, node.bases) if isinstance(node, ast.ClassDef) else ()
    is_module = any(x.endswith("Module") or ".nn." in x for x in bases)
    return is_module or getattr(node, "name", "") == "__call__"


def _statement(node: ast.stmt, around: _Around) -> Statement:
    """A statement, of a file and function to be named."""
    loop, inside = around.loop, evaluated_by(node)
    # (Of an assignment the target, or several; of a loop its own.)
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    replaced = {name for x in targets if x is not None for name in names_in(x)}
    is_for = isinstance(node, ast.For | ast.AsyncFor)
    names = [x for x in inside if isinstance(x, ast.Name)]
    read = [x.id for x in names if isinstance(x.ctx, ast.Load)]
    if isinstance(node, ast.AugAssign):  # which reads its target, too
        read += replaced
    again = frozenset(x for x, n in collections.Counter(read).items() if n > 1)
    has_loop = any(isinstance(x, _COMPREHENSIONS) for x in inside)
    changed = around.flow.changed_by(node)
    is_returned = isinstance(node, ast.Return) or bool(changed & around.flow.returned)
    decides = isinstance(node, CONDITIONS) or bool(changed & around.flow.deciding)

    if loop is None:
        # Of a comprehension: `[(x := step(x)) for _ in steps]`, or a method of `self`.
        reassigns = any(isinstance(x, ast.NamedExpr) for x in inside)
        may_be_at_once = has_loop and not (reassigns or "self" in read)
    else:
        may_be_at_once = around.flow.may_be_at_once(node, changed)

    return Statement(
        Place("", node.lineno, ""),
        _head(node),
        0 if loop is None else loop.lineno,
        around.branch,
        around.is_of_model,
        # What is in a `finally` runs after it.
        is_last=isinstance(node, ast.Return) and not around.may_go_on,
        reads_again=again,
        reads_once=again.isdisjoint(replaced),
        moves_the_same=not is_for and _moves_the_same(inside, loop),
        has_loop=has_loop,
        read_by_items=next(filter(None, map(_read_by_items, inside)), ""),
        sets_part=any(
            isinstance(x, ast.Subscript)
            and isinstance(x.value, ast.Attribute)
            and x.value.attr == "at"
            for x in inside
        ),
        decides=decides,
        only_adds=isinstance(node, ast.AugAssign) and not decides,
        is_returned=loop is None and is_returned,
        may_be_at_once=may_be_at_once,
    )


def _moves_the_same(inside: list[ast.AST], loop: ast.stmt | None) -> bool:
    """Whether it moves variables of which else only the shape is read in the loop.

    Anything else may change what is in them, also in place.
    """
    calls = [x for x in inside if isinstance(x, ast.Call)]
    moved = [x for x in calls if ast.unparse(x.func).rpartition(".")[2] in MOVING]
    if loop is None or not moved or not all(x.args for x in moved):
        return False

    arguments = {x for call in moved for x in ast.walk(call.args[0])}
    names = {x.id for x in arguments if isinstance(x, ast.Name)}
    shapes = (x for x in ast.walk(loop) if _asks_for_shape(x))
    harmless = arguments.union(y for x in shapes for y in ast.walk(x))
    elsewhere = (x for x in ast.walk(loop) if x not in harmless)
    others = {x.id for x in elsewhere if isinstance(x, ast.Name)}
    has_calls = any(isinstance(x, ast.Call) for x in arguments)
    return not has_calls and names.isdisjoint(others)


def _read_by_items(node: ast.AST) -> str:
    """The variable that a comprehension reads item by item, if that is all it does."""
    match node:
        case ast.ListComp(
            elt=ast.Call(ast.Name("float" | "int" | "bool"), [ast.Name(item)]),
            generators=[ast.comprehension(ast.Name(target), ast.Name(of), [])],
        ) if item == target:
            return of
        case _:
            return ""


def _asks_for_shape(node: ast.AST) -> bool:
    """Whether it is `len(x)`, `x.shape` or the like, of a variable."""
    match node:
        case ast.Call(func=ast.Name(id="len"), args=[ast.Name()]):
            return True
        case ast.Attribute(value=ast.Name(), attr=name, ctx=ast.Load()):
            return name in OF_AVAL
        case _:
            return False


def _head(node: ast.stmt) -> str:
    """A statement, without the body of a compound one."""
    return shortened(ast.unparse(node).split("\n", 1)[0], 60)
