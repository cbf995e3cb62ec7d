"""Maps the equations of a jaxpr to lines of the user's program."""

import ast
import functools as ft
import types
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
    calls = [i for i, frame in enumerate(frames) if _begins_trace(frame)]
    out: list[Place] = []
    for frame in frames[: calls[-1]] if calls else frames:
        if frame.file == BOUNDARY_FILE:
            break
        if not is_jax(frame.file):
            out.append(frame)
        elif frame.function.endswith("tree_map") and out[-1:] != [TREE_MAP]:
            out.append(TREE_MAP)
    return tuple(reversed(out))


def _begins_trace(frame: Place) -> bool:
    is_ours = package_of(frame.file) == "eqx_fastjit"
    return is_ours and frame.function.endswith("call_python")


def is_trace(code: types.CodeType) -> bool:
    """Whether code is what calls a function that is traced."""
    return _begins_trace(Place(code.co_filename, 0, code.co_name))


def user_frame(path: Path) -> Place | None:
    """The innermost frame of the user's own; of a library's if there is none."""
    frames = [f for f in reversed(path) if f is not TREE_MAP]
    for frame in frames:
        if not is_library(frame.file):
            return frame
    return frames[0] if frames else None


class Instruction(NamedTuple):
    """What Python was executing when an equation was made, to the instruction."""

    # With JAX's own functions, and without. Each frame's code and position.
    stack: Any
    users: Any


def instruction_of(equation: Any) -> Instruction | None:
    """Where in the bytecode an equation comes from; `None` if JAX does not tell."""
    source_info = getattr(equation, "source_info", None)
    traceback: Any = getattr(source_info, "traceback", None)
    try:
        codes, positions = traceback.raw_frames()
    except (AttributeError, TypeError, ValueError):
        return None
    stack = tuple(zip(codes, positions, strict=True))
    inner = 0
    while inner < len(codes) and is_jax(codes[inner].co_filename):
        inner += 1
    return Instruction(stack, stack[inner:])


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


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@ft.lru_cache(maxsize=256)
def _source(file: str) -> _Source | None:
    tree = syntax_tree(file)
    if tree is None:
        return None
    nodes: list[Any] = list(ast.walk(tree))
    functions = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    source = _Source([], functions)
    for node in nodes:
        if isinstance(node, ast.For | ast.While):
            first = node.body[0].lineno
            if isinstance(node, ast.While):
                first = node.test.lineno
            last = node.body[-1].end_lineno or first
        elif isinstance(node, _COMPREHENSIONS):
            first, last = node.lineno, node.end_lineno or node.lineno
        else:
            continue
        function = source.function_at(node.lineno)
        source.loops.append(Loop(node.lineno, first, last, function))
    return source


def has_source(file: str) -> bool:
    """Whether the text of a file can be read."""
    return _source(file) is not None


def loop_around(file: str, lines: Iterable[int]) -> Loop | None:
    """The innermost loop around these lines of one function."""
    source = _source(file)
    if source is None:
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
    is no loop, or if it may as well be a walk over a pytree.

    **Arguments:**

    - `paths`: of the equations that are repeated.
    - `others`: of all equations around them. `paths` may be among them.
    """
    if not paths or not all(paths):
        return None
    depth = 0
    shortest = min(map(len, paths))
    while depth < shortest and len({path[depth] for path in paths}) == 1:
        depth += 1
    # At `depth` they differ: in the line alone, if they are in one function.
    if depth < shortest:
        here = {(path[depth].file, path[depth].function) for path in paths}
        if len(here) != 1:
            depth -= 1
    else:
        depth -= 1
    for level in range(depth, -1, -1):
        frame = paths[0][level]
        if frame is TREE_MAP:
            return None
        if frame.function.endswith("<lambda>"):
            continue  # the lines around it are those of another function
        lines = {path[level].line for path in paths}
        loop = loop_around(frame.file, lines)
        if loop is not None:
            inside = {path for path in others if _is_in(path, loop, paths[0], level)}
            # A function under `jax.jit(inline=True)` leaves no frames. What it repeats,
            # for each leaf of a pytree say, is a small part of what the loop does.
            if len(inside.difference(paths)) > len(set(paths)):
                return None
            return Place(frame.file, loop.line, frame.function)
        if level == depth and not has_source(frame.file) and len(lines) == 1:
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


# Equations that XLA replaces by what is in them.
_CALLS = (
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "custom_jvp_call",
    "checkpoint",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "remat",
    "remat2",
)


def is_call(equation: Any) -> bool:
    """Whether an equation is nothing but a call of a function."""
    return equation.primitive.name in _CALLS and any(subjaxprs(equation))


def defined_at(jaxpr: Any) -> Place | None:
    """Where the function behind a jaxpr is defined, if that is known."""
    info = getattr(opened(jaxpr), "debug_info", None)
    text = getattr(info, "func_src_info", None)  # `name at file:line`
    if not isinstance(text, str) or " at " not in text:
        return None
    name, _, place = text.partition(" at ")
    file, _, line = place.rpartition(":")
    if not line.isdigit():
        return None
    return Place(file, int(line), name)
