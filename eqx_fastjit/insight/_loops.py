"""Unrolled Python loops: what a loop in the source repeats in a trace.

JAX notes for each equation which instruction of the program made it. An instruction in
the body of a loop has been executed once in each iteration.
"""

import ast
import collections
import dataclasses
import functools
import statistics
from collections import Counter
from typing import Any, NamedTuple

from eqx_fastjit._blocking import jaxprs_in
from eqx_fastjit._events import Event
from eqx_fastjit._place import is_users, Place

from ._causes import Finding, make_finding
from ._equations import Equation, Frame, read_jaxpr, Scope, trace_of, TREE_MAP
from ._source import nodes_of
from ._words import show_place


# A loop with fewer iterations is not reported.
_MIN_ITERATIONS = 3
# Seconds of a compilation that make it worth to look at its equations.
_LEAST_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class UnrolledLoop:
    """An unrolled Python loop, whose iterations follow one another in the trace."""

    place: Place
    # How often its body was executed: of a loop within another one, in all.
    iterations: int
    # In all iterations, loops inside included.
    equations: int
    # Whether all iterations have the same shapes, which a `scan` requires.
    uniform: bool

    @property
    def scan_equations(self) -> int:
        """About those of a `scan`: one iteration, and the `scan` itself."""
        return self.equations // self.iterations + 1


class _Loop(NamedTuple):
    """A `for`, a `while` or a comprehension in a source file."""

    line: int
    # Line and column of what runs once in each iteration.
    start: tuple[int, int]
    end: tuple[int, int]


@functools.lru_cache(maxsize=16)
def _loops_in(file: str) -> list[_Loop]:
    """The loops in a file, outer ones first."""
    loops: list[_Loop] = []
    for node in nodes_of(file):
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
        start = first.lineno, first.col_offset
        end = last.end_lineno or last.lineno, last.end_col_offset or 0
        loops.append(_Loop(node.lineno, start, end))
    return sorted(loops, key=lambda loop: loop.start)


def _loops_around(path: tuple[Frame, ...]) -> dict[Place, int]:
    """The loops that a path leads through, the outermost first; at which of its calls.

    A loop around the definition of a function is none that its calls are in.
    """
    out: dict[Place, int] = {}
    for level, frame in enumerate(path):
        if frame.instruction is None or not is_users(frame.file):
            continue
        for line, start, end in _loops_in(frame.file):
            if frame.begins <= line and start <= frame.start and frame.end <= end:
                out.setdefault(Place(frame.file, line, frame.function), level)
    return out


def find_loops(scope: Scope) -> tuple[UnrolledLoop, ...]:
    """The unrolled loops of a trace, those with the most equations first."""
    _loops_in.cache_clear()  # a file may have been edited
    members: dict[Place, list[Equation]] = {}
    executed: dict[Place, list[int]] = {}
    for inner in scope.distinct():
        if not inner.is_jax:
            _add(inner, members, executed)
    loops: list[UnrolledLoop] = []
    for place, times in executed.items():
        n, equations = statistics.median_low(times), members[place]
        size = sum(e.size for e in equations)
        loops.append(UnrolledLoop(place, n, size, _is_uniform(equations, n)))
    found = [loop for loop in loops if loop.iterations >= _MIN_ITERATIONS]
    return tuple(sorted(found, key=lambda x: -x.equations))


def _add(
    scope: Scope,
    members: dict[Place, list[Equation]],
    executed: dict[Place, list[int]],
) -> None:
    """Note the equations in each loop, and how often its instructions were executed."""
    around = functools.cache(_loops_around)
    counts = Counter((e.name, e.frames) for e in scope.equations)
    # By the user's call in the body of a loop, and the line of a library that it comes
    # to: how often each equation is there. A library has loops of its own (`jnp.stack`,
    # the layers of its models), but something in it is there once for each call. A
    # gradient makes several equations of one, and other ones in the first iteration.
    times: dict[Any, dict[Any, dict[Any, int]]] = {}
    for e in scope.equations:
        loops = around(e.path)
        for place in loops:
            members.setdefault(place, []).append(e)
        if loops:
            innermost, level = list(loops.items())[-1]
            if TREE_MAP not in e.path[level:]:
                call = tuple(frame for frame in e.path if is_users(frame.file))
                lines = times.setdefault((innermost, call), {})
                equation = e.name, e.frames
                lines.setdefault(e.path, {})[equation] = counts[equation]
    for (place, _), lines in times.items():
        n = min(statistics.mode(sorted(x.values())[::-1]) for x in lines.values())
        executed.setdefault(place, []).append(n)


def _is_uniform(equations: list[Equation], iterations: int) -> bool:
    """Whether each instruction does the same to the same shapes each time.

    A gradient makes several equations of one, each with its own shape, and may leave
    out those of one iteration.
    """
    types: dict[Any, Counter[str]] = collections.defaultdict(Counter)
    for e in equations:
        avals = [v.aval for v in (*e.jax.invars, *e.jax.outvars)]
        both = [(getattr(x, "shape", ()), getattr(x, "dtype", x)) for x in avals]
        # Not of a `slice`, which takes another part each time, as a `scan` does.
        has_own = e.name != "slice" and not jaxprs_in(e.jax)
        params = e.jax.params if has_own else {}
        types[e.name, e.frames][f"{both} {params}"] += 1
    return all(
        n >= min(iterations - 1, found.total())
        for found in types.values()
        for n in found.values()
    )


# --- while a program runs -------------------------------------------------------------


def unrolled_loop(event: Event) -> Finding | None:
    """The largest unrolled loop of what has just been compiled, if a `scan` is shorter.

    Only of what took long. The seconds are what a `scan` would save, by the number of
    equations.
    """
    if event.seconds < _LEAST_SECONDS or (traced := trace_of(event)) is None:
        return None
    scope = read_jaxpr(traced.jaxpr)
    loop = next((loop for loop in find_loops(scope) if loop.uniform), None)
    if loop is None:
        return None
    saved = event.seconds * (loop.equations - loop.scan_equations) / scope.size
    facts = {"loop": loop, "place": show_place(loop.place), "total": scope.size}
    return make_finding("scan", facts, seconds=saved, line=loop.place)
