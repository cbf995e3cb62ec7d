"""Captured constants: the arrays that a trace has closed over.

XLA computes what depends on constants alone while it compiles, element by element
("constant folding"). So a sort of a small array may take minutes.
"""

import collections
import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.tree_util as jtu
from jax.extend.core import Literal

from eqx_fastjit._facts import Place
from eqx_fastjit._texts import show_array
from eqx_fastjit.insight._words import plural

from ._equations import CONTROL_FLOW, Equation, Scope, UNKNOWN
from ._leaves import argument_of
from ._private import n_constants
from ._reads import reads_of


# About the longest that XLA takes on a slow machine, in seconds: to hold a byte of a
# constant; and to fold an operation, for each element of its largest operand.
_HOLDING = 5e-8
_FOLDING = {"sort": 2e-3, "reduce": 1e-4, "arg": 1e-4, "cum": 1e-4, "": 1e-5}
# What becomes a call of another library, or another value each time, is not folded.
_NOT_FOLDED = ("lu", "cholesky", "eig", "svd", "qr", "triangular", "random", "debug")


class Constant(NamedTuple):
    """What the function captured: a constant rather than an argument."""

    # Of an array; of a model, say, how many arrays.
    type: str
    bytes: int
    # Where it, or the largest of its arrays, is first used.
    place: Place
    # The variable whose value it is, if that is known.
    name: str = ""


def find_constants(scope: Scope, function: Any = None) -> tuple[Constant, ...]:
    """What a trace has captured, the largest first; no scalars.

    The arrays of one variable, such as a model, are one. `function` is the Python
    function that was traced, for the names.
    """
    found: dict[int, tuple[Any, Place]] = {}
    for inner in scope.calls:
        values = dict(zip(inner.jax.constvars, inner.consts, strict=False))
        for e in inner.equations:
            for v in e.jax.invars:
                value = v.val if isinstance(v, Literal) else values.pop(v, None)
                if _is_array(value):
                    found.setdefault(id(value), (value, e.place))
        unused = {id(x): (x, UNKNOWN) for x in values.values() if _is_array(x)}
        found = unused | found

    variables = list(_variables(function))
    by_variable: dict[Any, list[Constant]] = collections.defaultdict(list)
    for x, place in found.values():
        text, name = show_array(x.shape, str(x.dtype)), _name(x, variables)
        n = math.prod(x.shape) * x.dtype.itemsize
        constant = Constant(text, n, place, name)
        by_variable[argument_of(name) or id(x)].append(constant)
    return tuple(sorted(map(_joined, by_variable.values()), key=lambda c: -c.bytes))


def _joined(constants: list[Constant]) -> Constant:
    """The arrays of one variable as one."""
    if len(constants) == 1:
        return constants[0]
    first = max(constants, key=lambda c: c.bytes)
    n_bytes, name = sum(c.bytes for c in constants), argument_of(first.name)
    return Constant(plural(len(constants), "array"), n_bytes, first.place, name)


def _is_array(x: Any) -> bool:
    return bool(getattr(x, "shape", ())) and hasattr(x, "dtype")


def _name(value: Any, variables: list[tuple[str, Any]]) -> str:
    """The variable that has this array, or the only one with an array like it."""
    for name, x in variables:
        if x is value:
            return name
    dtype = jax.dtypes.canonicalize_dtype
    alike = {
        name
        for name, x in variables
        if x.shape == value.shape and dtype(x.dtype) == value.dtype
    }
    return alike.pop() if len(alike) == 1 else ""


def _variables(function: Any) -> Iterator[tuple[str, Any]]:
    """The arrays in what a function reads, beside its arguments."""
    for read in reads_of(function):
        with contextlib.suppress(Exception):  # keys that JAX cannot sort, say
            for keys, x in jtu.tree_leaves_with_path(read.value()):
                if _is_array(x):
                    yield f"{read.path}{jtu.keystr(keys)}", x


# --- what XLA does with them ----------------------------------------------------------


def seconds_of_constants(scope: Scope, constants: Sequence[Constant]) -> float:
    """An upper limit of what the constants of a trace add to compiling."""
    return _fold(scope)[0] + sum(x.bytes for x in constants) * _HOLDING


def _fold(scope: Scope, arguments: Sequence[Any] = ()) -> tuple[float, list[Any]]:
    """What it takes to fold a jaxpr, and of what each result is made.

    That is true of captured arrays, false of numbers alone, and `None` of anything
    else, as it is given for the `arguments`.
    """
    seconds = 0.0
    known: dict[Any, Any] = dict(zip(scope.jax.invars, arguments, strict=False))
    known |= {v: bool(getattr(v.aval, "shape", ())) for v in scope.jax.constvars}

    def origin_of(v: Any) -> Any:
        return _is_array(v.val) if isinstance(v, Literal) else known.get(v)

    for e in scope.equations:
        operands = [origin_of(v) for v in e.jax.invars]
        results: list[Any] = [None] * len(e.jax.outvars)
        is_folded = not (e.inner or e.jax.effects or e.name.startswith(_NOT_FOLDED))
        if e.is_call and len(e.inner[0].jax.invars) == len(operands):
            inside, results = _fold(e.inner[0], operands)
            seconds += inside
        elif e.name in CONTROL_FLOW:
            given = zip(e.inner, _given(e, operands), strict=True)
            seconds += sum(_fold(*x)[0] for x in given)
        elif operands and None not in operands and is_folded:
            results = [any(operands)] * len(results)
            n = max(math.prod(getattr(v.aval, "shape", ())) for v in e.jax.invars)
            each = next(x for k, x in _FOLDING.items() if e.name.startswith(k))
            seconds += n * each * any(operands)
        known.update(zip(e.jax.outvars, results, strict=True))
    return seconds, [origin_of(v) for v in scope.jax.outvars]


def _given(loop: Equation, operands: list[Any]) -> list[list[Any]]:
    """The operands that each function in control flow is given as they are.

    They come first there; what is carried, or taken by the element, comes after them.
    """
    params = loop.jax.params
    if loop.name == "cond":
        return [operands[1:]] * len(loop.inner)
    if loop.name == "scan":
        return [operands[: n_constants(params)]]

    # Of `while`: the body, then the condition, whose operands come first.
    n = params["cond_nconsts"]
    return [operands[n : n + params["body_nconsts"]], operands[:n]]
