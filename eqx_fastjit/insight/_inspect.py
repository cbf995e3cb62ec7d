"""`inspect`: what a traced function consists of, by source line."""

import collections
import dataclasses
from collections import Counter
from typing import Any, NamedTuple

from eqx_fastjit._blocking import has_host_callbacks
from eqx_fastjit._facts import Place

from ._profile import target
from ._shown import Shown
from ._words import plural, show_bytes, show_place, table
from .record._constants import Constant, find_constants
from .record._equations import read_jaxpr, Scope
from .record._loops import find_loops, UnrolledLoop
from .record._private import keeps_callbacks
from .show._text import Line


_LINES = "Equations by source line"
_LOOPS = "Unrolled Python loops (`jax.lax.scan` compiles the body once)"
_CONSTANTS = "Captured constants (large arrays compile faster as arguments)"


class LineCount(NamedTuple):
    """Equations that come from one line of the user's program."""

    place: Place
    equations: int
    # The most frequent ones, with their number.
    primitives: tuple[tuple[str, int], ...]

    def most_frequent(self) -> str:
        return ", ".join(f"{name} {count}" for name, count in self.primitives)


@dataclasses.dataclass(frozen=True, repr=False)
class Inspection(Shown):
    """The result of `inspect`. Its `str` is for people, and a notebook shows a page.

    **Fields:**

    - `name`: of the function.
    - `equations`: how many its jaxpr has, with those of inner jaxprs.
    - `lines`: equations by line of source, the most first.
    - `loops`: unrolled loops that a `scan` could be.
    - `constants`: arrays that it captured, the largest first.
    - `calls_back`: whether it calls back into Python, as `eqx.error_if` does.
    """

    name: str
    equations: int
    lines: tuple[LineCount, ...]
    loops: tuple[UnrolledLoop, ...]
    constants: tuple[Constant, ...]
    calls_back: bool = False

    def __str__(self) -> str:
        title = f"{self.name}: {plural(self.equations, 'equation')}"
        if self.calls_back:
            title += f"\n{_about_callbacks()}"

        lines = [
            (str(x.equations), show_place(x.place), x.most_frequent())
            for x in self.lines
        ]
        loops: list[Any] = []
        for x in self.loops:
            scan = f"~{x.scan_equations}" if x.uniform else "iterations differ"
            loops.append((x.iterations, x.equations, show_place(x.place), scan))
        constants: list[Any] = []
        for x in self.constants:
            size = show_bytes(x.bytes)
            constants.append((size, x.name, x.type, show_place(x.place)))

        tables = [
            table(_LINES, ("equations", "line", "most frequent"), lines),
            table(_LOOPS, ("iterations", "equations", "loop", "with scan"), loops),
            table(_CONSTANTS, ("size", "name", "type", "used at"), constants),
        ]
        return "\n\n".join([title, *filter(None, tables)])

    def to_html(self) -> str:
        """The inspection as a page of its own, which loads nothing."""
        from .show._page import lists_page  # and with it jinja2

        summary = plural(self.equations, "equation")
        if self.calls_back:
            summary += f". {_about_callbacks()}"

        lists: dict[str, list[list[Line]]] = collections.defaultdict(list)
        for x in self.lines:
            line = Line(str(x.equations), x.most_frequent(), place=x.place)
            lists[_LINES].append([line])
        for x in self.loops:
            scan = f"~{x.scan_equations} with scan" if x.uniform else "these differ"
            text = f"equations in {plural(x.iterations, 'iteration')}; {scan}"
            lists[_LOOPS].append([Line(str(x.equations), text, place=x.place)])
        for x in self.constants:
            line = Line(show_bytes(x.bytes), f"{x.name} {x.type}", place=x.place)
            lists[_CONSTANTS].append([line])
        return lists_page(self.name, summary, lists)


def _about_callbacks() -> str:
    refused = "" if keeps_callbacks() else ", and JAX's cache does not keep it"
    return f"It calls back into Python: calls block{refused}"


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
