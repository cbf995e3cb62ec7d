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
from eqx_fastjit._facts import is_users, Place

from ._equations import Equation, Frame, Scope
from ._reads import nodes_in


# A loop with fewer iterations is not reported.
_MIN_ITERATIONS = 3


@dataclasses.dataclass(frozen=True)
class UnrolledLoop:
    """An unrolled Python loop, whose iterations follow one another in the trace."""

    place: Place
    # How often its body was executed: of a loop within another one, in all.
    iterations: int
    # In all iterations of all calls, loops inside included.
    equations: int
    # Whether all iterations, but for one at most, have the same shapes, which a `scan`
    # requires.
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
    for node in nodes_in(file):
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


def _loops_around(path: tuple[Frame, ...]) -> list[Place]:
    """The loops that a path leads through, the outermost first.

    A loop around the definition of a function is none that its calls are in; nor is one
    in a constructor: of a model's list of layers, an array is no replacement.
    """
    makers = [i for i, x in enumerate(path) if "__init__" in x.function.split(".")]
    outside = path
    if makers:
        outside = path[: makers[0]] + path[makers[-1] + 1 :]

    out: dict[Place, None] = {}
    for frame in outside:
        for line, start, end in _loops_in(frame.file) if is_users(frame.file) else ():
            if frame.begins <= line and start <= frame.start and frame.end <= end:
                out[Place(frame.file, line, frame.function)] = None
    return list(out)


def find_loops(scope: Scope, outermost: bool = False) -> tuple[UnrolledLoop, ...]:
    """The unrolled loops of a trace, those with the most equations first.

    `outermost`: those that a `scan` could have; of loops in one another, the outer one.
    """
    _loops_in.cache_clear()  # a file may have been edited
    around = functools.cache(_loops_around)
    members: dict[Place, list[Equation]] = collections.defaultdict(list)

    # By innermost loop, and the user's call in it: how often each equation is there.
    times: dict[Any, Counter[Any]] = collections.defaultdict(Counter)
    sizes: Counter[Place] = Counter()

    for inner, calls in scope.calls.items():
        for e in () if inner.is_jax else inner.equations:
            loops = around(e.path)
            for place in loops:
                members[place].append(e)
                sizes[place] += calls * e.size
            if loops:
                call = tuple(frame for frame in e.path if is_users(frame.file))
                times[loops[-1], inner, call][e.name, e.frames] += 1

    # Calls in one body differ: some are in an `if`, or in loops of a library. (A loop
    # with nothing but loops in it has no count of its own, and is not told.)
    executed: dict[Place, list[int]] = collections.defaultdict(list)
    for (place, *_), counts in times.items():
        executed[place].append(_times(sorted(counts.values())))

    found: list[UnrolledLoop] = []
    taken: set[Equation] = set()
    for place in sorted(executed, key=lambda x: -sizes[x]):
        equations, n = members[place], statistics.median_low(executed[place])
        loop = UnrolledLoop(place, n, sizes[place], _is_uniform(equations, n))
        is_outer = loop.uniform and taken.isdisjoint(equations)
        if n >= _MIN_ITERATIONS and (is_outer or not outermost):
            found.append(loop)
            inside = [x for e in equations for s in e.inner for x, _ in s.walk()]
            taken.update(equations, inside)
    return tuple(found)


def _times(counts: list[int]) -> int:
    """How often a call was executed, by how often its equations are there.

    A library has loops of its own (`jnp.stack`, the layers of its models), and a
    gradient makes several equations of one, so larger counts are multiples. The count a
    third of the way up is taken: mostly that of what is made once in each call. Under
    `vmap`, the first iteration has equations of its own, and lacks others: what is
    carried is not yet batched.
    """
    n = counts[(len(counts) - 1) // 3]
    return n + 1 if n > 1 and n + 1 in counts else n


# These take another part each time, as a `scan` does: a `slice`, and its gradient.
_PARTS = ("slice", "pad")


def _is_uniform(equations: list[Equation], iterations: int) -> bool:
    """Whether each instruction does the same to the same shapes, but for one iteration.

    Under `vmap`, what is carried may begin as a constant, which is not batched. A
    gradient makes several equations of one, each with its own shape, and may leave out
    those of one iteration.
    """
    types: dict[Any, Counter[str]] = collections.defaultdict(Counter)
    for e in equations:
        avals = [v.aval for v in (*e.jax.invars, *e.jax.outvars)]
        both = [(getattr(x, "shape", ()), getattr(x, "dtype", x)) for x in avals]
        has_own = e.name not in _PARTS and not jaxprs_in(e.jax)
        params = e.jax.params if has_own else {}
        types[e.name, e.frames][f"{both} {params}"] += 1
    least = iterations - 1
    # What is there less often is of one iteration.
    rare = sum(n for found in types.values() for n in found.values() if n < least)
    return iterations * rare <= len(equations) and all(
        iterations * sum(n for n in found.values() if n < least) <= found.total()
        for found in types.values()
        if found.total() >= least
    )
