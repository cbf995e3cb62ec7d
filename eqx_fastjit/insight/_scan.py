"""Measures how long an unrolled loop would take to compile as a `scan`."""

# Of JAX's functions not all have types.
# pyright: reportUnknownMemberType=false

import functools as ft
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.core

from ._equations import Literal
from ._loops import is_uniform, Run


class NotScannable(Exception):
    """The iterations of a loop differ, so that no `scan` can replace it."""


class Seconds(NamedTuple):
    """Measured time for lowering and compiling the loop alone."""

    unrolled: float
    scan: float


def measure_run(run: Run) -> Seconds:
    """Time compiling an iteration, repeated as in the loop, and as a `scan`.

    It is the third iteration (or the last), because the first ones may begin with other
    types. Values that differ in each iteration are passed in. Raises `NotScannable`.
    """
    if not is_uniform(run):
        raise NotScannable("its iterations differ in their shapes")
    inputs = _inputs(run)
    constants = [_struct(v) for v in inputs.constant]
    carry = [_struct(v) for v in inputs.carried]
    separate = [[_struct(v) for v in inputs.each] for _ in range(run.iterations)]
    stacked = [_struct(v, (run.iterations,)) for v in inputs.each]
    unrolled, scan = _loops(run, inputs)
    try:
        return Seconds(
            _compile_seconds(unrolled, constants, carry, separate),
            _compile_seconds(scan, constants, carry, stacked),
        )
    except Exception as e:
        reason = str(e).partition("\n")[0]
        raise NotScannable(f"{type(e).__name__}: {reason}") from e


class _Inputs(NamedTuple):
    """The variables that an iteration gets from outside."""

    block: list[Any]  # its equations, as JAX's
    constant: list[Any]
    carried: list[Any]
    # What the next iteration gets for `carried`.
    carried_out: list[Any]
    each: list[Any]


def _inputs(run: Run) -> _Inputs:
    middle = min(2, run.iterations - 1)
    before = [e.jax for e in run.iteration(middle - 1)]
    block = [e.jax for e in run.iteration(middle)]
    # By what the iteration before has made: what this one makes in its place.
    made = {
        id(v): w
        for old, new in zip(before, block, strict=True)
        for v, w in zip(old.outvars, new.outvars, strict=False)
    }
    out = _Inputs(block, [], [], [], [])
    known = {id(v) for e in block for v in e.outvars}
    for e, other in zip(block, before, strict=True):
        for v, w in zip(e.invars, other.invars, strict=True):
            if isinstance(v, Literal) or id(v) in known:
                continue
            known.add(id(v))
            if id(v) in made:
                out.carried.append(v)
                out.carried_out.append(made[id(v)])
            else:
                (out.constant if v is w else out.each).append(v)
    for v, made_of in zip(out.carried, out.carried_out, strict=True):
        if (made_of.aval.shape, made_of.aval.dtype) != (v.aval.shape, v.aval.dtype):
            raise NotScannable("its carry changes its type between iterations")
    return out


def _loops(run: Run, inputs: _Inputs) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The loop, unrolled and as a `scan`."""
    try:
        one = run.jaxpr.replace(
            constvars=[],
            invars=[*inputs.constant, *inputs.carried, *inputs.each],
            # All that may be wanted later.
            outvars=[*inputs.carried_out, *inputs.block[-1].outvars],
            eqns=inputs.block,
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
        body = ft.partial(iteration, constants)
        return jax.lax.scan(body, carry, xs, length=run.iterations)

    return unrolled, scan


def _struct(v: Any, lead: tuple[int, ...] = ()) -> Any:
    return jax.ShapeDtypeStruct(
        (*lead, *v.aval.shape),
        v.aval.dtype,
        weak_type=not lead and getattr(v.aval, "weak_type", False),
    )


def _compile_seconds(fun: Callable[..., Any], *structs: Any) -> float:
    traced = jax.jit(fun).trace(*structs)
    start = time.perf_counter()
    traced.lower().compile()
    return time.perf_counter() - start
