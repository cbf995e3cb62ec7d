"""Unrolled Python loops: what a loop in the source repeats in a trace.

JAX notes for each equation which instruction of the program made it. An instruction in
the body of a loop has been executed once in each iteration.
"""

import ast
import collections
import dataclasses
import functools
import linecache
import statistics
from typing import Any, NamedTuple

from eqx_fastjit._place import Place

from ._equations import Equation, Frame, Scope, TREE_MAP
from ._frames import is_library
from ._words import show_place


# A loop with fewer iterations is not reported.
_MIN_ITERATIONS = 3


@dataclasses.dataclass(frozen=True)
class UnrolledLoop:
    """An unrolled Python loop, whose iterations follow one another in the trace."""

    place: Place
    # The largest trip count of its occurrences.
    iterations: int
    # How often the loop occurs in the trace: more than once inside an outer loop.
    occurrences: int
    # In all iterations of all occurrences.
    equations: int
    # An estimate of the equations that a `scan` would have: those of one iteration, and
    # the `scan` itself.
    scan_equations: int
    # Whether all iterations have the same shapes, which a `scan` requires.
    uniform: bool

    def hint(self, total: int) -> str:
        """What to do about it, in a function that has so many equations in `total`."""
        where = f"The loop at {show_place(self.place)}"
        if not self.uniform:
            return (
                f"{where} has other shapes in each iteration. With equal shapes, a "
                "`jax.lax.scan` would compile its body once."
            )
        return (
            f"{where} is unrolled into {self.equations} of the {total} equations. As a "
            f"`jax.lax.scan` it has about {self.scan_equations}, and compiles faster."
        )


_Position = tuple[int, int]  # line and column


class _Loop(NamedTuple):
    """A `for`, a `while` or a comprehension in a source file."""

    line: int
    # What runs once in each iteration.
    start: _Position
    end: _Position
    # Where the function begins that it is in.
    function: _Position


class _Key(NamedTuple):
    """A loop in a function, which these calls led to."""

    path: tuple[Frame, ...]
    file: str
    function: str
    loop: _Loop


@functools.lru_cache(maxsize=16)
def _nodes_of(file: str) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse("".join(linecache.getlines(file)))))
    # Of code that is nested too deeply for the parser; or of no Python.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _end(node: Any) -> _Position:
    return node.end_lineno, node.end_col_offset


def _start(node: Any) -> _Position:
    return node.lineno, node.col_offset


@functools.lru_cache(maxsize=4096)
def _function_at(file: str, start: _Position) -> _Position:
    """Where the innermost function around a position begins."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    functions = [node for node in _nodes_of(file) if isinstance(node, kinds)]
    around = [_start(x) for x in functions if _start(x) <= start <= _end(x)]
    return max(around, default=(0, 0))


@functools.lru_cache(maxsize=16)
def _loops_of(file: str) -> list[_Loop]:
    """The loops in a file, outer ones first."""
    loops: list[_Loop] = []
    for node in _nodes_of(file):
        match node:
            case ast.For():
                first, last = node.body[0], node.body[-1]
            case ast.While():
                first, last = node.test, node.body[-1]
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                first = last = node.elt
            case ast.DictComp():
                first, last = node.key, node.value
            case _:
                continue
        function = _function_at(file, _start(node))
        loops.append(_Loop(node.lineno, _start(first), _end(last), function))
    return sorted(loops, key=lambda loop: loop.start)


def _loops_around(frame: Frame) -> list[_Loop]:
    """The loops that a frame is in, the outermost first."""
    if frame.instruction is None or is_library(frame.file):
        return []
    loops = _loops_of(frame.file)
    loops = [x for x in loops if x.start <= frame.start and frame.end <= x.end]
    return [x for x in loops if x.function == _function_at(frame.file, frame.start)]


def _keys(path: tuple[Frame, ...]) -> tuple[_Key, ...]:
    """The loops that a path leads through, the outermost first."""
    keys: list[_Key] = []
    for level, frame in enumerate(path):
        for loop in _loops_around(frame):
            # Before Python 3.12, a comprehension is a function, too.
            if not any(key.loop == loop and key.file == frame.file for key in keys):
                keys.append(_Key(path[:level], frame.file, frame.function, loop))
    return tuple(keys)


class _Counts:
    """What the equations of one jaxpr tell of the loops around them."""

    def __init__(self, scope: Scope):
        # By equation: the loops that it is in, the outermost first.
        keys_of = functools.cache(_keys)
        self.around = {e: keys_of(e.path) for e in scope.equations}
        # By instruction of the user's: how often it was executed. One call of JAX may
        # make many equations (`jnp.stack`), and so may its derivative, which follow one
        # another like iterations. The first or the last equation that it makes is there
        # once for each time.
        counts: collections.Counter[Any] = collections.Counter()
        ends: dict[tuple[Frame, ...], list[Any]] = {}
        innermost: dict[tuple[Frame, ...], _Key] = {}
        for e, keys in self.around.items():
            if not keys or e.is_backward:
                continue
            key = (e.name, e.frames)
            counts[key] += 1
            ends.setdefault(e.path, [key, key])[1] = key
            if TREE_MAP not in e.path[len(keys[-1].path) :]:
                innermost[e.path] = keys[-1]
        executed: dict[_Key, list[int]] = {}
        for path, key in innermost.items():
            times = min(counts[end] for end in ends[path])
            executed.setdefault(key, []).append(times)
        self.executed = {
            key: int(statistics.median_low(times)) for key, times in executed.items()
        }

    def iterations(self, keys: tuple[_Key, ...]) -> tuple[int, int]:
        """Of the last loop, within the others: its iterations and its occurrences."""
        *around, key = keys
        outer = next((n for x in reversed(around) if (n := self.executed.get(x))), 1)
        return max(1, self.executed.get(key, 0) // outer), outer


def find_loops(scope: Scope) -> tuple[UnrolledLoop, ...]:
    """The unrolled loops of a trace, those with the most equations first."""
    for cached in (_nodes_of, _function_at, _loops_of):
        cached.cache_clear()  # a file may have been edited
    found: dict[Any, list[UnrolledLoop]] = {}
    for inner in scope.distinct():
        if inner.is_jax:
            continue
        counts = _Counts(inner)
        members: dict[tuple[_Key, ...], list[Equation]] = {}
        for e, keys in counts.around.items():
            for n in range(1, len(keys) + 1):
                members.setdefault(keys[:n], []).append(e)
        for keys, equations in members.items():
            loop = _loop(counts, keys, equations)
            if loop.iterations >= _MIN_ITERATIONS:
                found.setdefault(loop.place, []).append(loop)
    loops = [_merged(group) for group in found.values()]
    return tuple(sorted(loops, key=lambda x: -x.equations))


def _loop(
    counts: _Counts, keys: tuple[_Key, ...], equations: list[Equation]
) -> UnrolledLoop:
    iterations, occurrences = counts.iterations(keys)
    size = sum(e.size for e in equations)
    return UnrolledLoop(
        Place(keys[-1].file, keys[-1].loop.line, keys[-1].function),
        iterations,
        occurrences,
        size,
        occurrences + size // iterations,
        _is_uniform(equations),
    )


def _is_uniform(equations: list[Equation]) -> bool:
    """Whether each instruction has results of the same shapes each time."""
    types: dict[Any, set[Any]] = {}
    for e in equations:
        avals = [v.aval for v in e.jax.outvars]
        outs = [(getattr(x, "shape", ()), getattr(x, "dtype", x)) for x in avals]
        types.setdefault((e.name, e.frames), set()).add(str(outs))
    return all(len(found) == 1 for found in types.values())


def _merged(group: list[UnrolledLoop]) -> UnrolledLoop:
    """One loop, which different calls led to."""
    return dataclasses.replace(
        max(group, key=lambda x: x.iterations),
        occurrences=sum(x.occurrences for x in group),
        equations=sum(x.equations for x in group),
        scan_equations=sum(x.scan_equations for x in group),
        uniform=all(x.uniform for x in group),
    )
