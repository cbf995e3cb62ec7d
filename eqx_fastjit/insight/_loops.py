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
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from jax.extend.core import Literal

from eqx_fastjit._blocking import jaxprs_in
from eqx_fastjit._facts import is_users, Place

from ._equations import Equation, Frame, Scope, TREE_MAP


# A loop with fewer iterations is not reported.
_MIN_ITERATIONS = 3


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
    # Whether no iteration needs what another one has computed.
    independent: bool = False

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
    source = "".join(linecache.getlines(file))
    try:
        nodes = list(ast.walk(ast.parse(source)))
    # Of code that is nested too deeply for the parser; or of no Python.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    for node in nodes:
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

    A loop around the definition of a function is none that its calls are in; nor is one
    that calls a constructor: of a list of layers, say, an array is no replacement.
    """
    makers = (i for i, x in enumerate(path) if "__init__" in x.function.split("."))
    maker = max(makers, default=-1)
    out: dict[Place, int] = {}
    for level, frame in enumerate(path):
        if frame.instruction is None or not is_users(frame.file):
            continue
        for line, start, end in _loops_in(frame.file):
            if frame.begins <= line and start <= frame.start and frame.end <= end:
                out.setdefault(Place(frame.file, line, frame.function), level)
    return {place: level for place, level in out.items() if level > maker}


def find_loops(scope: Scope) -> tuple[UnrolledLoop, ...]:
    """The unrolled loops of a trace, those with the most equations first."""
    return tuple(loop for loop, _ in _found(scope))


def scannable(scope: Scope) -> tuple[UnrolledLoop, ...]:
    """Those that a `scan` could have, each; of loops in one another, the outer one."""
    loops: list[UnrolledLoop] = []
    taken: set[Equation] = set()
    for loop, equations in _found(scope):
        if loop.uniform and taken.isdisjoint(equations):
            loops.append(loop)
            taken.update(_with_inner(equations))
    return tuple(loops)


def _with_inner(equations: Iterable[Equation]) -> Iterator[Equation]:
    for e in equations:
        yield e
        for scope in e.inner:
            yield from _with_inner(scope.equations)


def _found(scope: Scope) -> list[tuple[UnrolledLoop, list[Equation]]]:
    """The loops of a trace, with their equations."""
    _loops_in.cache_clear()  # a file may have been edited
    members: dict[Place, list[Equation]] = {}
    executed: dict[Place, list[int]] = {}
    for inner in scope.distinct():
        if not inner.is_jax:
            _add(inner, members, executed)
    arguments = {*scope.jax.invars}
    loops: list[tuple[UnrolledLoop, list[Equation]]] = []
    # Of a loop with nothing but loops in it, that they leave nothing of.
    inner = {n for times in executed.values() for n in times}
    for place, equations in members.items():
        if times := executed.get(place):
            n = statistics.median_low(times)
        elif (n := _rounds(equations)) in inner:
            continue
        size = sum(e.size for e in equations)
        is_uniform = _is_uniform(equations, n, arguments)
        is_independent = is_uniform and _is_independent(equations, n)
        loop = UnrolledLoop(place, n, size, is_uniform, is_independent)
        if n >= _MIN_ITERATIONS:
            loops.append((loop, equations))
    return sorted(loops, key=lambda x: -x[0].equations)


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
        executed.setdefault(place, []).append(_times(lines.values()))


def _times(lines: Iterable[dict[Any, int]]) -> int:
    """How often a call was executed, by the counts of its equations in each line."""
    sizes: Counter[int] = Counter()
    for counts in lines:
        sizes[statistics.mode(sorted(counts.values())[::-1])] += sum(counts.values())
    n = min(sizes)
    more = min((x for x in sizes if x > 1), default=1)
    # Under `vmap`, the first iteration has lines of its own, and lacks others: what is
    # carried is not yet batched.
    if n == 1 < more and sizes[1] * more <= sizes.total():
        n = more
    return n + 1 if more == n and n + 1 in sizes else n


# These take another part each time, as a `scan` does: a `slice`, and its gradient.
_PARTS = ("slice", "pad")


def _rounds(equations: list[Equation]) -> int:
    """How often a loop is executed of which all is in loops inside it.

    That is how often the rarest of its equations is there, by shapes and options.
    """
    counts = Counter(
        (e.name, e.frames, str(e.jax.params), *(str(v.aval) for v in e.jax.outvars))
        for e in equations
        if e.name not in _PARTS
    )
    least = min(counts.values(), default=0)
    # A gradient leaves out some of one iteration.
    return least + 1 if least + 1 in counts.values() else least


def _is_uniform(
    equations: list[Equation], iterations: int, arguments: set[Any]
) -> bool:
    """Whether each instruction does the same to the same shapes each time.

    `arguments`, such as the weight of a layer, have all their axes each time.

    A gradient makes several equations of one, each with its own shape, and may leave
    out those of one iteration.
    """
    types: dict[Any, Counter[str]] = collections.defaultdict(Counter)
    operands: dict[Any, list[Any]] = {}
    for e in equations:
        avals = [v.aval for v in (*e.jax.invars, *e.jax.outvars)]
        both = [(getattr(x, "shape", ()), getattr(x, "dtype", x)) for x in avals]
        has_own = e.name not in _PARTS and not jaxprs_in(e.jax)
        params = e.jax.params if has_own else {}
        types[e.name, e.frames][text := f"{both} {params}"] += 1
        operands[e.name, e.frames, text] = e.jax.invars
    for key, found in types.items():
        if (least := iterations - 1) > found.total():
            continue  # of one iteration
        usual = [operands[*key, text] for text, n in found.items() if n >= least]
        for text, n in found.items():
            own = operands[*key, text]
            if n < least and not any(_is_unbatched(own, x, arguments) for x in usual):
                return False
    return True


def _is_unbatched(own: list[Any], others: list[Any], arguments: set[Any]) -> bool:
    """Whether operands are as others, but for an axis that some of these have not.

    So is the first iteration under `vmap`, if what is carried begins as a constant.
    """
    pairs = [(v, w) for v, w in zip(own, others, strict=False) if v.aval != w.aval]
    for v, w in pairs:
        x, y = ([n for n in getattr(z.aval, "shape", ()) if n != 1] for z in (v, w))
        is_less = x == y or any(x == [*y[:i], *y[i + 1 :]] for i in range(len(y)))
        both = not isinstance(v, Literal) and not isinstance(w, Literal)
        if not is_less or (both and {v, w} <= arguments):
            return False
    return bool(pairs)


def _is_independent(equations: list[Equation], iterations: int) -> bool:
    """Whether no iteration needs what another one has computed."""
    total = Counter((e.name, e.frames) for e in equations)
    seen: Counter[Any] = Counter()
    made: dict[Any, int] = {}  # in which iteration a variable was
    for e in equations:
        key = e.name, e.frames
        iteration = seen[key] * iterations // total[key]
        seen[key] += 1
        operands = (v for v in e.jax.invars if not isinstance(v, Literal))
        if any(made.get(v, iteration) != iteration for v in operands):
            return False
        made.update(dict.fromkeys(e.jax.outvars, iteration))
    return True
