"""Maps the equations of a jaxpr to lines of the user's program."""

import ast
import functools as ft
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from eqx_fastjit._compat import equation_frames
from eqx_fastjit._place import Place
from eqx_fastjit.doctor._sites import is_library, package_of

from ._source import syntax_tree
from ._target import BOUNDARY_FILE


# Stands in a path for a walk over a pytree: what is called from there is called for one
# leaf after the other.
TREE_MAP = Place("<tree_map>", 0, "tree_map")


def is_jax(file: str) -> bool:
    """Whether a file is JAX's or ours, whose frames do not help the user."""
    return package_of(file) in ("jax", "jaxlib", "eqx_fastjit")


Path = tuple[Place, ...]


def path_of(equation: Any) -> Path:
    """The calls that led to an equation, outermost first, from the traced function on.

    Places of JAX's and ours are left out.
    """
    frames = equation_frames(equation)
    # Of a program's own trace, the outermost of our functions is where it began.
    calls = [i for i, f in enumerate(frames) if begins_trace(f.file, f.function)]
    out: list[Place] = []
    for frame in frames[: calls[-1]] if calls else frames:
        if frame.file == BOUNDARY_FILE:
            break
        if not is_jax(frame.file):
            out.append(frame)
        elif frame.function.endswith("tree_map") and out[-1:] != [TREE_MAP]:
            out.append(TREE_MAP)
    return tuple(reversed(out))


def begins_trace(file: str, function: str) -> bool:
    """Whether this is what calls a function that is traced."""
    return package_of(file) == "eqx_fastjit" and function.endswith("call_python")


def user_frame(path: Path) -> Place | None:
    """The innermost frame of the user's own; of a library's if there is none."""
    frames = [f for f in reversed(path) if f is not TREE_MAP]
    own = (f for f in frames if not is_library(f.file))
    return next(own, frames[0] if frames else None)


class Instruction(NamedTuple):
    """What Python was executing when an equation was made, to the instruction."""

    # With JAX's own functions, and without. Each frame's code and position.
    stack: Any
    users: Any


def instruction_of(equation: Any) -> Instruction | None:
    """Where in the bytecode an equation comes from; `None` if JAX does not tell."""
    try:
        codes, positions = equation.source_info.traceback.raw_frames()
    except (AttributeError, TypeError, ValueError):
        return None
    stack = tuple(zip(codes, positions, strict=True))
    users = itertools.dropwhile(lambda frame: is_jax(frame[0].co_filename), stack)
    return Instruction(stack, tuple(users))


class Loop(NamedTuple):
    """A `for`, a `while` or a comprehension in a source file."""

    line: int
    # Lines that run once in each iteration.
    first: int
    last: int
    # First line of the function that it is in.
    function: int


class _Source(NamedTuple):
    loops: list[Loop]
    functions: list[tuple[int, int]]

    def function_at(self, line: int) -> int:
        """First line of the innermost function around a line."""
        return max((a for a, b in self.functions if a <= line <= b), default=0)


@ft.lru_cache(maxsize=256)
def _source(file: str) -> _Source | None:
    if (tree := syntax_tree(file)) is None:
        return None
    nodes: list[Any] = list(ast.walk(tree))
    functions = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    source = _Source([], functions)
    for node in nodes:
        match node:
            case ast.For():
                start, end = node.body[0], node.body[-1]
            case ast.While():
                start, end = node.test, node.body[-1]
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                start = end = node
            case _:
                continue
        first = start.lineno
        last = end.end_lineno or first
        function = source.function_at(node.lineno)
        source.loops.append(Loop(node.lineno, first, last, function))
    return source


def loop_around(file: str, lines: Iterable[int]) -> Loop | None:
    """The innermost loop around these lines of one function."""
    if (source := _source(file)) is None:
        return None
    lines = list(lines)
    functions = {source.function_at(line) for line in lines}
    found = [
        loop
        for loop in source.loops
        if loop.first <= min(lines)
        and max(lines) <= loop.last
        and functions == {loop.function}
    ]
    return min(found, key=lambda loop: loop.last - loop.first, default=None)


def find_loop(paths: Sequence[Path], others: Collection[Path] = ()) -> Place | None:
    """The loop in which all of these paths begin to differ, or are the same.

    Where the source cannot be read, the line that they have in common. `None` if there
    is no loop, or if it may as well be a walk over a pytree. `others` are the paths of
    all equations around; those that are repeated may be among them.
    """
    if not paths or not all(paths):
        return None
    depth = 0
    shortest = min(map(len, paths))
    while depth < shortest and len({path[depth] for path in paths}) == 1:
        depth += 1
    # There they differ: in the line alone, if they are in one function.
    ends = [path[depth] for path in paths] if depth < shortest else []
    if len({(place.file, place.function) for place in ends}) != 1:
        depth -= 1
    for level in range(depth, -1, -1):
        frame = paths[0][level]
        if frame is TREE_MAP:
            return None
        if frame.function.endswith("<lambda>"):
            continue  # the lines around it are those of another function
        lines = {path[level].line for path in paths}
        if (loop := loop_around(frame.file, lines)) is not None:
            inside = {path for path in others if _is_in(path, loop, paths[0], level)}
            # A function under `jax.jit(inline=True)` leaves no frames. What it repeats,
            # for each leaf of a pytree say, is a small part of what the loop does.
            if len(inside.difference(paths)) > len(set(paths)):
                return None
            return Place(frame.file, loop.line, frame.function)
        if level == depth and _source(frame.file) is None and len(lines) == 1:
            return frame
    return None


def _is_in(path: Path, loop: Loop, run: Path, level: int) -> bool:
    """Whether a path leads through a loop, which is in frame `level` of `run`."""
    if len(path) <= level or path[:level] != run[:level]:
        return False
    frame = path[level]
    is_same = (frame.file, frame.function) == (run[level].file, run[level].function)
    return is_same and loop.first <= frame.line <= loop.last


def subjaxprs(equation: Any) -> Iterator[Any]:
    """The jaxprs in an equation's parameters, open or closed."""
    pending = list(equation.params.values())
    while pending:
        value = pending.pop(0)
        if isinstance(value, tuple | list):
            pending += value
        elif hasattr(getattr(value, "jaxpr", value), "eqns"):
            yield value


def opened(jaxpr: Any) -> Any:
    """The open jaxpr in a closed one."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def defined_at(jaxpr: Any) -> Place | None:
    """Where the function behind a jaxpr is defined, if that is known."""
    info = getattr(opened(jaxpr), "debug_info", None)
    # `name at file:line`
    name, _, place = str(getattr(info, "func_src_info", "")).partition(" at ")
    file, _, line = place.rpartition(":")
    return Place(file, int(line), name) if line.isdigit() else None
