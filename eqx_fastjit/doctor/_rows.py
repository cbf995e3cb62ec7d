"""The tables of a report: each function, and each compilation on the timeline."""

import collections
from collections.abc import Iterator
from typing import Any

from eqx_fastjit._units import plural

from ._causes import function_name, function_place, line_of
from ._plain import Compile
from ._report import at, FunctionRow, stages
from ._sites import Line
from ._watch import Seen


# Seconds from which an operation outside of jit has a row of its own in the table.
_LONG = 1.0


def rows(ours: list[Seen], plain: list[Compile]) -> list[FunctionRow]:
    """A row for each line that made jitted functions, the most expensive first.

    **Arguments:**

    - `ours`: traces of functions of ours, explained.
    - `plain`: everything else that was compiled.
    """
    out = [
        *_our_rows(ours),
        *_plain_rows([c for c in plain if c.miss is not None]),
        *_eager_rows([c for c in plain if c.miss is None]),
    ]
    return sorted(out, key=lambda row: -row.seconds)


def _our_rows(ours: list[Seen]) -> Iterator[FunctionRow]:
    groups: dict[Any, list[Seen]] = collections.defaultdict(list)
    for s in ours:
        groups[s.trace.key()].append(s)
    for group in groups.values():
        traces = [s.trace for s in group]
        # Those inlined into other functions are a part of their time.
        apart = [t for t in traces if not t.inlined]
        place = function_place(traces[0])
        yield FunctionRow(
            function=function_name(traces[0]),
            **at(place),
            jit="filter_jit",
            objects=len({t.function.number for t in traces}),
            traces=sum(t.retraced and not t.failed for t in traces),
            compiles=sum(t.compile > 0 for t in traces),
            seconds=sum(t.seconds for t in apart),
            **stages(apart),
            causes=_count(map(_cause, group)),
            calls=_calls(s.site or line_of(s.trace.site) for s in group),
        )


def _cause(s: Seen) -> str:
    # Not above: it would import JAX into a program that has none.
    from eqx_fastjit.insight._explain import cause_of

    return cause_of(s.trace, s.explanation)


def _count(causes: Any) -> dict[str, int]:
    return dict(collections.Counter(causes).most_common())


def _calls(lines: Any) -> tuple[tuple[str, int], ...]:
    return tuple(collections.Counter(str(x or "?") for x in lines).most_common())


def _plain_rows(compiles: list[Compile]) -> Iterator[FunctionRow]:
    groups: dict[Any, list[Compile]] = collections.defaultdict(list)
    for c in compiles:
        groups[c.name, c.miss and c.miss.place].append(c)
    for (name, place), group in groups.items():
        causes = [c.miss.kind for c in group if c.miss is not None]
        yield _plain_row(name, place, "jax.jit", group, causes)


def _eager_rows(compiles: list[Compile]) -> Iterator[FunctionRow]:
    groups: dict[Any, list[Compile]] = collections.defaultdict(list)
    for c in compiles:
        groups[c.name, c.site].append(c)
    small: list[Compile] = []
    for (name, site), group in groups.items():
        if sum(c.seconds for c in group) >= _LONG:
            yield _plain_row(name, site, "jax", group, [])
        else:
            small += group
    if small:
        n = len({c.name for c in small})
        name = f"{plural(n, 'operation')} outside of jit"
        yield _plain_row(name, None, "jax", small, [])


def _plain_row(
    name: str, place: Line | None, jit: str, group: list[Compile], causes: list[str]
) -> FunctionRow:
    return FunctionRow(
        function=name,
        **at(place),
        jit=jit,
        objects=1 + causes.count("fresh-function"),
        traces=len(group),
        compiles=len(group),
        seconds=sum(c.seconds for c in group),
        **stages(group),
        causes=_count(causes),
        calls=_calls(c.site for c in group),
    )
