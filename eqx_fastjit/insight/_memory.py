"""What takes memory in a trace, and what would save memory."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from eqx_fastjit._place import Place

from ._equations import Equation, Literal, Scope, UNKNOWN
from ._jaxpr_report import Buffer, Constant, Donation, Memory, Residuals
from ._places import is_jax
from ._table import nbytes, show_type
from ._target import Traced


# What is kept for the backward pass is worth a word from here on, and from this share
# of XLA's temporary memory.
_MIN_RESIDUAL_BYTES = 1 << 20
_MIN_RESIDUAL_SHARE = 0.25
# Buffers of a kind that are reported.
_LARGEST = 5


def constants(scope: Scope) -> tuple[Constant, ...]:
    """The arrays that a trace has captured, the largest first."""
    found: dict[int, Constant] = {}
    for value, place in _captured(scope):
        shape = getattr(value, "shape", None)
        if shape is not None and id(value) not in found:
            dtype = str(value.dtype)
            found[id(value)] = Constant(tuple(shape), dtype, nbytes(value), *place)
    return tuple(sorted(found.values(), key=lambda c: -c.bytes))


def _captured(scope: Scope) -> Iterator[tuple[Any, Place]]:
    """Captured values, and where they are first used."""
    for inner in scope.distinct():
        for variable, value in zip(inner.jax.constvars, inner.consts, strict=False):
            yield value, _first_use(inner, variable) or UNKNOWN
        for equation in inner.equations:
            for v in equation.jax.invars:
                if isinstance(v, Literal) and getattr(v.val, "shape", ()):
                    yield v.val, equation.place


def _first_use(scope: Scope, variable: Any) -> Place | None:
    """The line that first uses a variable, in functions that get it passed as well."""
    for equation in scope.equations:
        invars = equation.jax.invars
        for i, v in enumerate(invars):
            if v is not variable:
                continue
            for inner in equation.inner:
                # The branches of a `cond` lack its first argument.
                j = i - (len(invars) - len(inner.jax.invars))
                place = inner.defined_at
                of_jax = place is not None and is_jax(place.file)
                if 0 <= j < len(inner.jax.invars) and not of_jax:
                    frame = _first_use(inner, inner.jax.invars[j])
                    if frame is not None:
                        return frame
            return equation.place
    return None


def memory(traced: Traced, scope: Scope, stats: Any) -> Memory:
    """XLA's estimate, if there is one, and the largest buffers."""
    jaxpr = traced.stage.jaxpr.jaxpr
    kinds = ("argument", "output", "temp", "alias", "generated_code")
    return Memory(
        *[getattr(stats, f"{kind}_size_in_bytes", None) for kind in kinds],
        largest_arguments=_largest(map(_buffer, traced.names, jaxpr.invars)),
        largest_results=_largest(map(_buffer, traced.out_names, jaxpr.outvars)),
        largest_intermediates=_largest(dict.fromkeys(_intermediates(scope))),
    )


def _largest(buffers: Iterable[Buffer]) -> tuple[Buffer, ...]:
    return tuple(sorted(buffers, key=lambda b: -b.bytes)[:_LARGEST])


def _buffer(name: str, v: Any, place: Place | str = "") -> Buffer:
    return Buffer(name, show_type(v.aval), nbytes(v.aval), str(place))


def _intermediates(scope: Scope) -> Iterator[Buffer]:
    for inner in scope.distinct():
        for equation in inner.equations:
            if not equation.is_call:
                for v in equation.jax.outvars:
                    if nbytes(v.aval):
                        yield _buffer(equation.name, v, equation.place)


def donations(traced: Traced) -> tuple[Donation, ...]:
    """Arguments as large as a result, with neither being spoken for."""
    jaxpr = traced.stage.jaxpr.jaxpr
    free: dict[str, list[str]] = {}
    for name, v in zip(traced.out_names, jaxpr.outvars, strict=True):
        if any(v is x for x in jaxpr.invars):
            continue  # an argument handed back
        free.setdefault(show_type(v.aval), []).append(name)
    arguments = list(zip(traced.names, jaxpr.invars, traced.donated, strict=True))
    out: list[Donation] = []
    for wanted in (True, False):  # donated ones take their results first
        for name, v, donated in arguments:
            results = free.get(show_type(v.aval))
            if donated is not wanted or not results:
                continue
            # `state.w` rather becomes `result.w` than something else of that shape.
            result = max(results, key=lambda r: _common_end(name, r))
            results.remove(result)
            if not donated and (size := nbytes(v.aval)):
                out.append(Donation(name, result, show_type(v.aval), size))
    return tuple(sorted(out, key=lambda d: -d.bytes))


def _common_end(a: str, b: str) -> int:
    pairs = zip(reversed(a), reversed(b), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def residuals(scope: Scope, temporaries: int | None) -> Residuals | None:
    """Values that a forward pass computes for a backward pass; `None` without one.

    `temporaries` are the bytes of XLA's temporary memory, if they are known.
    """
    passes = _Passes(scope)
    if not passes.backward:
        return None
    kept = passes.kept.values()
    total = sum(b.bytes for b in kept)
    # XLA may compute again what it would have to keep; it cannot save more than it has.
    held = total if temporaries is None else min(total, temporaries)
    share = total / temporaries if temporaries and total <= temporaries else None
    return Residuals(
        number=len(kept),
        bytes=total,
        largest=_largest(kept),
        share=share,
        forward_equations=passes.forward,
        checkpoint=held >= _MIN_RESIDUAL_BYTES
        and (share is None or share >= _MIN_RESIDUAL_SHARE),
    )


class _Passes:
    """The forward and the backward pass of a trace."""

    def __init__(self, scope: Scope):
        self._arguments = {id(v) for v in (*scope.jax.invars, *scope.jax.constvars)}
        # By variable of the forward pass: the equation that makes it, and itself.
        self._made: dict[int, tuple[Equation, Any]] = {}
        # Those that the backward pass uses.
        self.kept: dict[int, Buffer] = {}
        # Equations of the forward pass.
        self.forward = 0
        self.backward = False
        self._visit(scope, {})

    def _visit(self, scope: Scope, renamed: dict[int, int]) -> None:
        """`renamed`: from a variable inside of a call to what it is outside."""
        for equation in scope.equations:
            outside = equation.jax.invars
            if equation.is_backward:
                self.backward = True
                for v in outside:
                    self._use(v, renamed.get(id(v), id(v)))
                continue
            if equation.is_call:
                for inner in equation.inner:
                    inside = inner.jax.invars
                    if len(outside) == len(inside):
                        pairs = zip(inside, outside, strict=True)
                        names = {id(w): renamed.get(id(v), id(v)) for w, v in pairs}
                        self._visit(inner, names)
            else:
                self.forward += equation.size
            for v in equation.jax.outvars:
                self._made[id(v)] = equation, v

    def _use(self, v: Any, key: int) -> None:
        if not isinstance(v, Literal) and key in self._made:
            maker, variable = self._made[key]
            if key not in self._arguments and nbytes(variable.aval):
                self.kept[key] = _buffer(maker.name, variable, maker.place)
