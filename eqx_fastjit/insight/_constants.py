"""Captured constants: the arrays that a trace has closed over.

XLA computes what depends on constants alone while it compiles, element by element
("constant folding"). So a sort of a small array may take minutes.
"""

import collections
import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax.tree_util as jtu
import numpy as np
from jax.extend.core import Literal

from eqx_fastjit._facts import Place
from eqx_fastjit._texts import show_array

from ._equations import Scope, UNKNOWN
from ._reads import reads_of


# About the longest that XLA takes on a slow machine, in seconds: to hold a byte of a
# constant; and to fold an operation, for each element of its operands.
_HOLDING = 5e-8
_FOLDING = {"sort": 2e-3, "reduce": 1e-4, "arg": 1e-4, "cum": 1e-4, "": 1e-5}
# What becomes a call of another library, or another value each time, is not folded.
_NOT_FOLDED = ("lu", "cholesky", "eig", "svd", "qr", "triangular", "random", "debug")


@dataclasses.dataclass(frozen=True)
class Constant:
    """An array that the function captured: a constant rather than an argument."""

    type: str
    bytes: int
    # Where it is first used.
    place: Place
    # The variable whose value it is, if that is known.
    name: str = ""
    # An upper limit of what it adds to compiling.
    seconds: float = 0.0


def find_constants(scope: Scope, function: Any = None) -> tuple[Constant, ...]:
    """The arrays that a trace has captured, the largest first.

    `function` is the Python function that was traced, for the names of the arrays.
    """
    costs = collections.defaultdict[int, float](float)
    _fold(scope, [None] * len(scope.jax.invars), costs)
    variables = list(_variables(function))
    out: list[Constant] = []
    for value, place in _captured(scope):
        text, name = show_array(value.shape, str(value.dtype)), _name(value, variables)
        n = math.prod(value.shape) * value.dtype.itemsize
        out.append(Constant(text, n, place, name, n * _HOLDING + costs[id(value)]))
    return tuple(sorted(out, key=lambda c: -c.bytes))


def _captured(scope: Scope) -> Iterator[tuple[Any, Place]]:
    """Captured arrays, but no scalars, and where they are first used."""
    seen: set[int] = set()
    for inner in scope.distinct():
        pairs = dict(zip(inner.jax.constvars, inner.consts, strict=False))
        for equation in inner.equations:
            for v in equation.jax.invars:
                value = v.val if isinstance(v, Literal) else pairs.pop(v, None)
                if _is_array(value) and id(value) not in seen:
                    seen.add(id(value))
                    yield value, equation.place
        yield from ((x, UNKNOWN) for x in pairs.values() if _is_array(x))


def _is_array(x: Any) -> bool:
    return bool(getattr(x, "shape", ())) and hasattr(x, "dtype")


# --- what XLA folds -------------------------------------------------------------------


def _fold(scope: Scope, inputs: Sequence[Any], costs: dict[int, float]) -> list[Any]:
    """The constants that each result is made of; `None` if of arguments, too.

    What it takes to fold an operation is added to the `costs` of each of them.
    """
    known = dict(zip(scope.jax.invars, inputs, strict=True))
    for variable, value in zip(scope.jax.constvars, scope.consts, strict=False):
        known[variable] = frozenset([id(value)])

    def origin_of(v: Any) -> Any:
        if isinstance(v, Literal):
            return frozenset([id(v.val)] * _is_array(v.val))
        return known.get(v)

    for e in scope.equations:
        operands = [origin_of(v) for v in e.jax.invars]
        results: list[Any] = [None] * len(e.jax.outvars)
        is_folded = not (e.inner or e.jax.effects or e.name.startswith(_NOT_FOLDED))
        if e.is_call and len(e.inner[0].jax.invars) == len(operands):
            results = _fold(e.inner[0], operands, costs)
        elif operands and None not in operands and is_folded:
            origins = frozenset[int]().union(*operands)
            results = [origins] * len(results)
            n = max(math.prod(getattr(v.aval, "shape", ())) for v in e.jax.invars)
            each = next(x for k, x in _FOLDING.items() if e.name.startswith(k))
            for origin in origins:
                costs[origin] += n * each
        known.update(zip(e.jax.outvars, results, strict=True))
    return [origin_of(v) for v in scope.jax.outvars]


# --- names ----------------------------------------------------------------------------


def _name(value: Any, variables: list[tuple[str, Any]]) -> str:
    """The variable that has this array, or the only one with an array of its shape."""
    for name, x in variables:
        is_numpy = isinstance(x, np.ndarray) and not hasattr(value, "sharding")
        if x is value or (is_numpy and np.may_share_memory(x, np.asarray(value))):
            return name
    alike = {name for name, x in variables if x.shape == value.shape}
    return alike.pop() if len(alike) == 1 else ""


def _variables(function: Any) -> Iterator[tuple[str, Any]]:
    """The arrays in what a function reads, beside its arguments."""
    for read in reads_of(function):
        with contextlib.suppress(Exception):  # keys that JAX cannot sort, say
            for keys, x in jtu.tree_leaves_with_path(read.value()):
                if _is_array(x):
                    yield f"{read.path}{jtu.keystr(keys)}", x
