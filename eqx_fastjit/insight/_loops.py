"""Unrolled Python loops: the same equations repeated in a jaxpr."""

# Of JAX's functions not all have types.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import collections
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import jax.extend.core
import numpy as np

from eqx_fastjit._compat import name_stack
from eqx_fastjit._place import Place

from ._places import find_loop, Instruction, instruction_of, Path


# A loop with fewer iterations is not reported.
MIN_ITERATIONS = 3
# The longest iteration that is looked for, in equations (an inner loop counts as one).
_MAX_PERIOD = 4096

Literal = jax.extend.core.Literal


class Run(NamedTuple):
    """Consecutive equations of one jaxpr: the iterations of a loop."""

    place: Place
    jaxpr: Any  # that they are in
    equations: list[Any]
    iterations: int
    # Where each iteration begins; one more for the end.
    bounds: list[int]


class _Item(NamedTuple):
    """One equation, or a loop that was found already."""

    symbol: int
    first: int
    last: int  # one beyond


def find_runs(jaxpr: Any, paths: Sequence[Path]) -> list[Run]:
    """The loops in the equations of one jaxpr, inner loops before outer ones.

    **Arguments:**

    - `jaxpr`: an open jaxpr.
    - `paths`: for each of its equations, the calls that led to it.

    **Returns:** for each loop the equations of its iterations.
    """
    equations = jaxpr.eqns
    symbols: dict[Any, int] = {}

    def number(key: Any) -> int:
        return symbols.setdefault(key, len(symbols))

    items = [
        _Item(number((e.primitive.name, e.params.get("name"), path)), i, i + 1)
        for i, (e, path) in enumerate(zip(equations, paths, strict=True))
    ]
    runs: list[Run] = []
    period = 1
    while period <= min(len(items) // MIN_ITERATIONS, _MAX_PERIOD):
        new: list[_Item] = []
        position = 0
        for start, iterations in _repeats([item.symbol for item in items], period):
            end = start + iterations * period
            chosen = items[start:end]
            first, last = chosen[0].first, chosen[-1].last
            place = find_loop(paths[first:last])
            if place is None:
                continue
            bounds = [item.first - first for item in chosen[::period]]
            bounds.append(last - first)
            run = Run(place, jaxpr, list(equations[first:last]), iterations, bounds)
            runs.append(run)
            block = tuple([item.symbol for item in chosen[:period]])
            new += items[position:start]
            # Without the number of iterations, which may differ in each iteration of an
            # outer loop.
            new.append(_Item(number(("loop", block)), first, last))
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
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        iterations = (end - start + period) // period
        if iterations >= MIN_ITERATIONS:
            out.append((start, iterations))
    # Two runs may share items where one ends and the next begins.
    kept: list[tuple[int, int]] = []
    for start, iterations in out:
        if not kept or start >= kept[-1][0] + kept[-1][1] * period:
            kept.append((start, iterations))
    return kept


class Executions:
    """How often each instruction of the user's was executed in a trace.

    One call of JAX may create many equations (`jnp.stack`), and so may its derivative.
    They follow one another like the iterations of a loop. The last equation that a call
    creates in the forward pass is there once for each time that it was executed.
    """

    def __init__(self) -> None:
        self._counts: collections.Counter[Any] = collections.Counter()
        # By instruction of the user's.
        self._last: dict[Any, Any] = {}
        self._instructions: dict[int, Instruction] = {}

    def note(self, equation: Any) -> None:
        """Take in an equation, in the order of the jaxpr."""
        found = instruction_of(equation)
        if found is None:
            return
        self._instructions[id(equation)] = found
        if "transpose(" in name_stack(equation):
            return  # of the backward pass
        key = (equation.primitive.name, found.stack)
        self._counts[key] += 1
        self._last[found.users] = key

    def most_iterations(self, run: Run) -> int:
        """The most iterations that a loop with these equations can have had."""
        counts = []
        for equation in _block(run, 0):
            found = self._instructions.get(id(equation))
            if found is not None and found.users in self._last:
                counts.append(self._counts[self._last[found.users]])
        return int(statistics.median_low(counts)) if counts else run.iterations


# --- what `scan` would do ------------------------------------------------------------


class NotScannable(Exception):
    """The iterations of a loop differ, so that no `scan` can replace it."""


class Seconds(NamedTuple):
    """Measured time for lowering and compiling the loop alone."""

    unrolled: float
    scan: float


def is_uniform(run: Run) -> bool:
    """Whether the results of all iterations have the same shapes and dtypes."""
    blocks = [_signature(_block(run, k)) for k in range(run.iterations)]
    return all(block == blocks[0] for block in blocks)


def _block(run: Run, k: int) -> list[Any]:
    return run.equations[run.bounds[k] : run.bounds[k + 1]]


def _signature(block: list[Any]) -> list[Any]:
    return [
        (e.primitive.name, [(v.aval.shape, v.aval.dtype) for v in e.outvars])
        for e in block
        if all(hasattr(v.aval, "shape") for v in e.outvars)
    ]


def measure_run(run: Run) -> Seconds:
    """Time compiling an iteration, repeated as in the loop, and as a `scan`.

    It is the third iteration (or the last), because the first ones may begin with other
    types. Values that differ in each iteration are passed in. Raises `NotScannable`.
    """
    if not is_uniform(run):
        raise NotScannable("its iterations differ in their shapes")
    middle = min(2, run.iterations - 1)
    before, block = _block(run, middle - 1), _block(run, middle)
    made_before = {
        id(v): (i, j) for i, e in enumerate(before) for j, v in enumerate(e.outvars)
    }
    inside = {id(v) for e in block for v in e.outvars}
    carried: dict[Any, tuple[int, int]] = {}
    constant: list[Any] = []
    each: list[Any] = []
    for e, other in zip(block, before, strict=True):
        for v, w in zip(e.invars, other.invars, strict=True):
            if isinstance(v, Literal) or id(v) in inside or v in carried:
                continue
            if any(v is x for x in (*constant, *each)):
                continue
            if id(v) in made_before:
                carried[v] = made_before[id(v)]
            elif v is w:
                constant.append(v)
            else:
                each.append(v)
    for v, (i, j) in carried.items():
        made = block[i].outvars[j].aval
        if (made.shape, made.dtype) != (v.aval.shape, v.aval.dtype):
            raise NotScannable("its carry changes its type between iterations")

    inputs = [*constant, *carried, *each]
    carried_out = [block[i].outvars[j] for i, j in carried.values()]
    # All that may be wanted later.
    outputs = [*carried_out, *block[-1].outvars]
    try:
        one = run.jaxpr.replace(
            constvars=[], invars=inputs, outvars=outputs, eqns=block
        )
    except Exception as e:  # another JAX makes its jaxprs in another way
        raise NotScannable(f"{type(e).__name__}: {e}") from e

    def iteration(constants: Any, carry: Any, xs: Any) -> Any:
        out = jax.core.eval_jaxpr(one, [], *constants, *carry, *xs)
        return out[: len(carry)], out[len(carry) :]

    def unrolled(constants: Any, carry: Any, xs: Any) -> Any:
        ys: list[Any] = []
        for x in xs:
            carry, y = iteration(constants, carry, x)
            ys.append(y)
        return carry, ys

    def scan(constants: Any, carry: Any, xs: Any) -> Any:
        def body(carry: Any, x: Any) -> Any:
            return iteration(constants, carry, x)

        return jax.lax.scan(body, carry, xs, length=run.iterations)

    def struct(v: Any, lead: tuple[int, ...] = ()) -> Any:
        return jax.ShapeDtypeStruct(
            (*lead, *v.aval.shape),
            v.aval.dtype,
            weak_type=not lead and getattr(v.aval, "weak_type", False),
        )

    constants, carry = [struct(v) for v in constant], [struct(v) for v in carried]
    separate = [[struct(v) for v in each] for _ in range(run.iterations)]
    stacked = [struct(v, (run.iterations,)) for v in each]
    try:
        return Seconds(
            _compile_seconds(unrolled, constants, carry, separate),
            _compile_seconds(scan, constants, carry, stacked),
        )
    except Exception as e:
        reason = str(e).partition("\n")[0]
        raise NotScannable(f"{type(e).__name__}: {reason}") from e


def _compile_seconds(fun: Callable[..., Any], *structs: Any) -> float:
    traced = jax.jit(fun).trace(*structs)
    start = time.perf_counter()
    traced.lower().compile()
    return time.perf_counter() - start
