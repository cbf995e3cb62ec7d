"""Unrolled Python loops: the same equations repeated in a jaxpr."""

import collections
import itertools
import statistics
from typing import Any, NamedTuple

import numpy as np

from eqx_fastjit._place import Place

from ._equations import Equation, Scope
from ._places import find_loop, Path


# A loop with fewer iterations is not reported.
MIN_ITERATIONS = 3
# The longest iteration that is looked for, in equations (an inner loop counts as one).
_MAX_PERIOD = 4096


class Run(NamedTuple):
    """Consecutive equations of one jaxpr: the iterations of a loop."""

    place: Place
    jaxpr: Any  # that they are in
    equations: list[Equation]
    iterations: int
    # Where each iteration begins; one more for the end.
    bounds: list[int]

    def iteration(self, k: int) -> list[Equation]:
        """The equations of an iteration."""
        return self.equations[self.bounds[k] : self.bounds[k + 1]]


class _Item(NamedTuple):
    """One equation, or a loop that was found already."""

    symbol: int
    first: int
    last: int  # one beyond


def find_runs(scope: Scope) -> list[Run]:
    """The loops in the equations of one jaxpr, inner loops before outer ones."""
    equations = scope.equations
    paths = [e.path for e in equations]
    # A number for each kind of item.
    number: dict[Any, int] = collections.defaultdict(itertools.count().__next__)
    items = [
        _Item(number[e.name, e.jax.params.get("name"), e.path], i, i + 1)
        for i, e in enumerate(equations)
    ]
    # Of the forward pass, and of the backward pass.
    around: tuple[set[Path], set[Path]] = (set(), set())
    for e in equations:
        around[e.is_backward].add(e.path)
    runs: list[Run] = []
    period = 1
    while period <= min(len(items) // MIN_ITERATIONS, _MAX_PERIOD):
        new: list[_Item] = []
        position = 0
        for start, iterations in _repeats([item.symbol for item in items], period):
            end = start + iterations * period
            chosen = items[start:end]
            first, last = chosen[0].first, chosen[-1].last
            place = find_loop(paths[first:last], around[equations[first].is_backward])
            if place is None:
                continue
            bounds = [*(item.first - first for item in chosen[::period]), last - first]
            run = Run(place, scope.jax, equations[first:last], iterations, bounds)
            runs.append(run)
            block = tuple([item.symbol for item in chosen[:period]])
            new += items[position:start]
            # Without the number of iterations, which may differ in each iteration of an
            # outer loop.
            new.append(_Item(number["loop", block], first, last))
            position = end
        if position:
            items = new + items[position:]
            period = 1
        else:
            period += 1
    return runs


def _repeats(symbols: list[int], period: int) -> list[tuple[int, int]]:
    """Where a block of this length is repeated: its start, and how often."""
    numbers = np.asarray(symbols)
    same = np.concatenate([[False], numbers[:-period] == numbers[period:], [False]])
    edges = np.flatnonzero(same[1:] != same[:-1])
    out: list[tuple[int, int]] = []
    free = 0  # two runs may share items where one ends and the next begins
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        iterations = (end - start + period) // period
        if iterations >= MIN_ITERATIONS and start >= free:
            out.append((start, iterations))
            free = start + iterations * period
    return out


class Executions:
    """How often each instruction of the user's was executed in a trace.

    One call of JAX may create many equations (`jnp.stack`), and so may its derivative.
    They follow one another like the iterations of a loop. The first or the last
    equation that a call creates in the forward pass is there once for each time that it
    was executed: the last of `jnp.stack`, the first of a derivative of a derivative.
    """

    def __init__(self) -> None:
        self._counts: collections.Counter[Any] = collections.Counter()
        # The first and the last equation, by instruction of the user's.
        self._ends: dict[Any, list[Any]] = {}

    def note(self, equation: Equation) -> None:
        """Take in an equation, in the order of the jaxpr."""
        found = equation.instruction
        if found is not None and not equation.is_backward:
            key = (equation.name, found.stack)
            self._counts[key] += 1
            self._ends.setdefault(found.users, [key, key])[1] = key

    def most_iterations(self, run: Run) -> int:
        """The most iterations that a loop with these equations can have had."""
        counts = [
            min(self._counts[key] for key in self._ends[found.users])
            for equation in run.iteration(0)
            if (found := equation.instruction) is not None and found.users in self._ends
        ]
        return int(statistics.median_low(counts)) if counts else run.iterations


def is_uniform(run: Run) -> bool:
    """Whether the results of all iterations have the same shapes and dtypes."""
    blocks = [
        [
            (e.name, [(v.aval.shape, v.aval.dtype) for v in e.jax.outvars])
            for e in run.iteration(k)
            if all(hasattr(v.aval, "shape") for v in e.jax.outvars)
        ]
        for k in range(run.iterations)
    ]
    return all(block == blocks[0] for block in blocks)
