"""How values flow through a loop or a function, from variable to variable.

By its source: what a variable is made of, which object a method may change by what it
is given, and what is assigned under a condition. None of its code is run.
"""

import ast
import builtins
import functools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple


CONDITIONS = (ast.If, ast.While, ast.Assert)

# What values come to that decide whether a loop goes on.
_END = "<end>"
_ENDING = (ast.Break, ast.Return, ast.Raise)
# Modules whose functions only compute with numbers.
_COMPUTING = ("np", "numpy", "math")
# Functions that make random keys of one: what is computed does not flow through these.
_OF_KEYS = re.compile(r"(.*\.)?(random|jr|jrandom)\.(split|fold_in)")
# Methods of arrays, which change nothing.
_OF_ARRAYS = (
    *("astype", "reshape", "squeeze", "ravel", "sum", "mean", "std", "max", "min"),
    *("argmax", "argmin", "item", "tolist", "block_until_ready"),
)
# Methods that only put what they are given into their object.
_PUTTING = ("append", "extend")
# Where one of these is, it is not followed whether iterations need one another; nor in
# loops of more steps.
_UNCLEAR = (ast.Match, ast.Try, ast.Yield, ast.YieldFrom, ast.Await, ast.Nonlocal)
_MOST_STEPS = 200


class _Step(NamedTuple):
    """The variables that a piece of syntax reads, and those that it changes by that."""

    read: set[str]
    changed: set[str]


class Flow:
    """The flow of values in a loop, a function or a module.

    `modules`: the variables that are modules, which no call changes.
    """

    def __init__(self, scope: ast.AST, modules: set[str]):
        nodes = [*nodes_of(scope)]
        if isinstance(scope, ast.While):  # what a `for` iterates over is before it
            nodes.append(scope)
        self._modules = modules
        self._scope = scope
        self._is_clear = not any(isinstance(x, _UNCLEAR) for x in nodes)
        self._steps = [step for x in nodes for step in self._steps_of(x)]

        # The variables that decide what follows: conditions read them, or calls whose
        # results are assigned; or they are what such a variable is made of.
        conditions = [x.test for x in nodes if isinstance(x, (*CONDITIONS, ast.IfExp))]
        conditions += [x.subject for x in nodes if isinstance(x, ast.Match)]
        deciding = {name for test in conditions for name in names_in(test)}
        deciding.update(*(_given_to_assigned_calls(x) for x in nodes))
        back = [(x.changed, x.read) for x in self._steps]
        self.deciding = deciding | _reached(deciding, back)
        # And those of which results are made.
        results = (x.value for x in nodes if isinstance(x, ast.Return) and x.value)
        returned = {name for x in results for name in names_in(x)}
        self.returned = returned | _reached(returned, back)

    def changed_by(self, statement: ast.stmt) -> set[str]:
        """The variables that a statement changes by what it evaluates."""
        inside = (statement, *evaluated_by(statement))
        return {name for x in inside for step in self._steps_of(x) for name in step[1]}

    def may_be_at_once(self, statement: ast.stmt, changed: set[str]) -> bool:
        """Whether no iteration of a `for` needs what another one computes in it.

        `changed`: what the statement changes.
        """
        is_short = len(self._steps) <= _MOST_STEPS
        if not (isinstance(self._scope, ast.For) and self._is_clear and is_short):
            return False

        if isinstance(statement, ast.Assign):  # as of keys, whose flow is not followed
            own = {x for y in statement.targets for x in _plain(y)} - self._fresh
            if not own.isdisjoint(names_in(statement.value)):
                return False

        read = names_in(self._scope.iter)
        read |= {x for step in self._steps_of(statement) for x in step.read}
        for call in _calls_in(statement):
            read |= _given_by(call)
            if not _puts(call):
                read |= _owners(call.func) - self._modules
        # What it changes, and what is made of that: in this iteration; and in later
        # ones, by what these do not assign before.
        here = changed | self._after(changed)
        later = here - self._fresh
        needed = later | self._after(later) | self._carried
        return _END not in here and read.isdisjoint(needed)

    @functools.cached_property
    def _carried(self) -> set[str]:
        """What an iteration makes of what it was, and what is made of that."""
        changed = {x for step in self._steps for x in step.changed} - self._fresh
        carried = {x for x in changed if x in self._after({x})}
        return carried | self._after(carried)

    @functools.cached_property
    def _fresh(self) -> set[str]:
        """The variables that each iteration assigns before it reads them."""
        if not isinstance(self._scope, ast.For):
            return set()

        fresh, read = names_in(self._scope.target), set[str]()
        for statement in self._scope.body:
            if isinstance(statement, ast.Assign):
                read |= names_in(statement.value)
                assigned = {x for y in statement.targets for x in _plain(y)}
                fresh |= assigned - read
            read |= names_in(statement)
        return fresh

    def _after(self, names: set[str]) -> set[str]:
        """The variables that values of some variables come to."""
        return _reached(names, self._steps)

    def _steps_of(self, node: ast.AST) -> Iterator[_Step]:
        match node:
            case ast.Assign(value=ast.Call(func=func)) if _OF_KEYS.fullmatch(
                ast.unparse(func)
            ):
                return
            case ast.Assign(targets=targets, value=value):
                yield _Step(names_in(value), {x for y in targets for x in _owners(y)})
            case (
                ast.AugAssign(target=target, value=value)
                | ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.NamedExpr(target=target, value=value)
                | ast.For(target=target, iter=value)
                | ast.withitem(context_expr=value, optional_vars=ast.expr() as target)
            ):
                yield _Step(names_in(value), _owners(target))
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if (
                name not in _OF_ARRAYS
            ):
                yield _Step(names_in(node), _owners(value) - self._modules)
            case ast.Expr(value=ast.Call(func=ast.Name(id=name)) as call):
                if not hasattr(builtins, name):  # it may write to what it is given
                    yield _Step(names_in(node), _given_by(call))
            case ast.If(test=test) | ast.While(test=test):
                inside = [*nodes_of(node)]
                # (Those in others have nothing of their own.)
                assigning = [x for x in inside if not isinstance(x, ast.If | ast.While)]
                steps = (step for x in assigning for step in self._steps_of(x))
                changed = {name for step in steps for name in step.changed}
                ends = any(isinstance(x, _ENDING) for x in inside)
                if ends or isinstance(node, ast.While):
                    changed.add(_END)
                yield _Step(names_in(test), changed)
            case _:
                return


def _reached(names: set[str], steps: Sequence[tuple[set[str], set[str]]]) -> set[str]:
    """What is reached from some names by one step or more."""
    found, more = set[str](), names
    while more:
        from_here = (b for a, b in steps if not a.isdisjoint(more))
        more = {x for b in from_here for x in b} - found
        found |= more
    return found


def nodes_of(scope: ast.AST) -> Iterator[ast.AST]:
    """The syntax in a function or module, without the bodies of functions in it."""
    waiting = [*ast.iter_child_nodes(scope)]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def evaluated_by(node: ast.stmt) -> list[ast.AST]:
    """What a statement evaluates by itself, without the body of a compound one."""
    bodies = (ast.stmt, ast.ExceptHandler, ast.match_case)
    heads = (x for x in ast.iter_child_nodes(node) if not isinstance(x, bodies))
    return [x for head in heads for x in ast.walk(head)]


def names_in(node: ast.AST) -> set[str]:
    """The variables that a piece of syntax mentions."""
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}


def _owners(target: ast.AST) -> set[str]:
    """The variables that are assigned, or of which a part is: `x` of `x.y[0]`."""
    match target:
        case ast.Name(id=name):
            return {name}
        case ast.Attribute(value=inner) | ast.Subscript(value=inner):
            return _owners(inner)
        case ast.Starred(value=inner) | ast.Call(func=inner):
            return _owners(inner)
        case ast.Tuple(elts=inner) | ast.List(elts=inner):
            return {name for x in inner for name in _owners(x)}
        case _:
            return set()


def _plain(target: ast.expr) -> set[str]:
    """The variables that are assigned as a whole."""
    is_tuple = isinstance(target, ast.Tuple | ast.List)
    targets = target.elts if is_tuple else [target]
    return {x.id for x in targets if isinstance(x, ast.Name)}


def _puts(call: ast.Call) -> bool:
    """Whether it is one like `losses.append(loss)`."""
    return isinstance(call.func, ast.Attribute) and call.func.attr in _PUTTING


def _calls_in(statement: ast.stmt) -> list[ast.Call]:
    """The calls that a statement makes by itself."""
    return [x for x in evaluated_by(statement) if isinstance(x, ast.Call)]


def _given_by(call: ast.Call) -> set[str]:
    """The variables that a call is given."""
    return {x for y in (*call.args, *call.keywords) for x in names_in(y)}


def _given_to_assigned_calls(node: ast.AST) -> set[str]:
    """What calls are given whose results are assigned, unless they only compute."""
    if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        return set()

    found: set[str] = set()
    for call in _calls_in(node):
        module, _, name = ast.unparse(call.func).rpartition(".")
        is_builtin = not module and hasattr(builtins, name)
        if not (is_builtin or module in _COMPUTING):
            found |= _given_by(call)
    return found
