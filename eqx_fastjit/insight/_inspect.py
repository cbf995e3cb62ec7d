"""`inspect`: what a traced function consists of, by source line."""

import collections
import dataclasses
from collections import Counter
from typing import Any, NamedTuple

from eqx_fastjit._blocking import has_host_callbacks
from eqx_fastjit._facts import Place

from ._profile import target
from ._shown import Shown
from ._words import plural, show_bytes, wrapped
from .record._constants import Constant, find_constants
from .record._equations import read_jaxpr, Scope
from .record._loops import find_loops, UnrolledLoop
from .record._private import keeps_callbacks
from .show._text import as_text, Line


_LINES = "Equations by source line"
_LOOPS = "Unrolled Python loops (`jax.lax.scan` compiles the body once)"
_CONSTANTS = "Captured constants (large arrays compile faster as arguments)"
# Columns of the text, and what it shows of each list.
_COLUMNS, _SHOWN = 80, 12


class LineCount(NamedTuple):
    """Equations that come from one line of the user's program."""

    place: Place
    equations: int
    # The most frequent ones, with their number.
    primitives: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True, repr=False)
class Inspection(Shown):
    """The result of `inspect`. Its `str` is for people, and a notebook shows a page.

    **Fields:**

    - `name`: of the function.
    - `equations`: how many its jaxpr has, with those of inner jaxprs.
    - `lines`: equations by line of source, the most first.
    - `loops`: unrolled loops that a `scan` could be.
    - `constants`: arrays that it captured, the largest first; those of a model are one.
    - `calls_back`: whether it calls back into Python, as `eqx.error_if` does.
    """

    name: str
    equations: int
    lines: tuple[LineCount, ...]
    loops: tuple[UnrolledLoop, ...]
    constants: tuple[Constant, ...]
    calls_back: bool = False

    def __str__(self) -> str:
        out = wrapped(f"{self.name}: {self._summary()}")
        for heading, blocks in self._lists().items():
            out += ["", heading]
            for lines in blocks[:_SHOWN]:
                out += as_text(lines, _COLUMNS)
            if more := len(blocks[_SHOWN:]):
                out += as_text([Line("", f"and {more} more")], _COLUMNS)
        return "\n".join(out)

    def to_html(self) -> str:
        """The inspection as a page of its own, which loads nothing."""
        from .show._page import lists_page  # and with it jinja2

        return lists_page(self.name, self._summary(), self._lists())

    def _summary(self) -> str:
        summary = plural(self.equations, "equation")
        if self.calls_back:
            summary += ". It calls back into Python: calls block"
            if not keeps_callbacks():
                summary += ", and JAX's cache does not keep it"
        return summary

    def _lists(self) -> dict[str, list[list[Line]]]:
        """What there is of each kind, under its heading."""
        lists: dict[str, list[list[Line]]] = collections.defaultdict(list)
        for x in self.lines:
            most = ", ".join(f"{name} {count}" for name, count in x.primitives)
            lists[_LINES].append([Line(str(x.equations), most, place=x.place)])
        for x in self.loops:
            scan = f"~{x.scan_equations} with scan" if x.uniform else "these differ"
            text = f"equations in {plural(x.iterations, 'iteration')}; {scan}"
            lists[_LOOPS].append([Line(str(x.equations), text, place=x.place)])
        for x in self.constants:
            text = f"{x.name}, {x.type}".lstrip(", ")
            lists[_CONSTANTS].append([Line(show_bytes(x.bytes), text, place=x.place)])
        return lists


def inspect(f: Any, *args: Any, **kwargs: Any) -> Inspection:
    """Report what a traced function consists of, by source line.

    The function is traced as by `f.trace(...)`, unless it has been traced already. It
    is not compiled: what memory a call needs, `f.lower(...).compile()` tells by its
    `memory_analysis()`.

    **Arguments:**

    - `f`: a function under `eqx_fastjit.filter_jit`, `equinox.filter_jit` or `jax.jit`,
        or a plain one.
    - `*args`, `**kwargs`: the arguments of the call. A `jax.ShapeDtypeStruct` may be
        passed in place of an array.

    **Returns:**

    An `Inspection`: equations by source line, unrolled loops, captured constants.
    `str(inspection)` shows it.

    **Raises:**

    `TypeError` if `f` is not callable, and what tracing raises.
    """
    it = target(f, args, kwargs)
    traced = it.jitted.trace(*it.args, **it.kwargs)
    scope = read_jaxpr(traced.jaxpr)
    return Inspection(
        it.name,
        scope.size,
        _lines(scope),
        find_loops(scope),
        find_constants(scope, it.fun),
        has_host_callbacks(traced),
    )


def _lines(scope: Scope) -> tuple[LineCount, ...]:
    """The lines with the most equations first."""
    found: dict[Place, Counter[str]] = collections.defaultdict(Counter)
    for equation, place in scope.walk():
        if not equation.is_call:
            found[place][equation.name] += 1
    lines = [LineCount(x, n.total(), tuple(n.most_common(3))) for x, n in found.items()]
    return tuple(sorted(lines, key=lambda x: (-x.equations, x.place)))
