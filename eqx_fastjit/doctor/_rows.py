"""The tables of a report: each function, and each compilation on the timeline."""

import collections
from collections.abc import Iterable

from eqx_fastjit._units import plural

from ._causes import function_name, function_place, line_of
from ._plain import Compile
from ._report import at, FunctionRow, grouped, stages
from ._sites import Line
from ._watch import Seen


# Seconds from which an operation outside of jit has a row of its own in the table.
_LONG = 1.0


def rows(ours: list[Seen], plain: list[Compile]) -> list[FunctionRow]:
    """A row for each line that made jitted functions, the most expensive first.

    Those of ours have been explained, and `plain` is everything else that was compiled.
    """
    out = [_our_row(group) for group in grouped(ours, lambda s: s.trace.key()).values()]
    small: list[Compile] = []
    for (name, place, is_eager), group in grouped(plain, _key).items():
        if is_eager and sum(c.seconds for c in group) < _LONG:
            small += group
        else:
            out.append(_plain_row(name, place, group))
    if small:
        n = len({c.name for c in small})
        out.append(_plain_row(f"{plural(n, 'operation')} outside of jit", None, small))
    return sorted(out, key=lambda row: -row.seconds)


def _key(c: Compile) -> tuple[str, Line | None, bool]:
    """A function by where it is defined, and an operation by where it is called."""
    return (c.name, c.site, True) if c.miss is None else (c.name, c.miss.place, False)


def _our_row(group: list[Seen]) -> FunctionRow:
    # Not above: it would import JAX into a program that has none.
    from eqx_fastjit.insight._explain import cause_of

    traces = [s.trace for s in group]
    # Those inlined into other functions are a part of their time.
    apart = [t for t in traces if not t.inlined]
    return FunctionRow(
        function=function_name(traces[0]),
        **at(function_place(traces[0])),
        jit="filter_jit",
        objects=len({t.function.number for t in traces}),
        traces=sum(t.retraced and not t.failed for t in traces),
        compiles=sum(t.compile > 0 for t in traces),
        seconds=sum(t.seconds for t in apart),
        **stages(apart),
        causes=dict(_counts(cause_of(s.trace, s.explanation) for s in group)),
        calls=_counts(s.site or line_of(s.trace.site) for s in group),
    )


def _plain_row(name: str, place: Line | None, group: list[Compile]) -> FunctionRow:
    causes = [c.miss.kind for c in group if c.miss is not None]
    return FunctionRow(
        function=name,
        **at(place),
        jit="jax.jit" if causes else "jax",
        objects=1 + causes.count("fresh-function"),
        traces=len(group),
        compiles=len(group),
        seconds=sum(c.seconds for c in group),
        **stages(group),
        causes=dict(_counts(causes)),
        calls=_counts(c.site for c in group),
    )


def _counts(things: Iterable[str | Line | None]) -> tuple[tuple[str, int], ...]:
    return tuple(collections.Counter(str(x or "?") for x in things).most_common())
