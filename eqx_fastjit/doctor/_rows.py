"""The tables of a report: each function, and each compilation on the timeline."""

import collections
import math
import re
from collections.abc import Collection, Iterable
from typing import Any

from eqx_fastjit._units import plural

from ._causes import function_name, function_place, line_of
from ._plain import Compile
from ._report import at, Change, Compilation, FunctionRow, grouped, stages
from ._sites import Line
from ._watch import Seen


# Seconds from which an operation outside of jit has a row of its own in the table.
_LONG = 1.0
# Leaves that are listed, of those that differ.
_MAX_CHANGES = 100
_MAX_SIGNATURE = 2000


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


# --- compilations --------------------------------------------------------------------


def make_compilations(
    ours: list[Seen], plain: list[Compile], began: float
) -> tuple[Compilation, ...]:
    """Each compilation in order: those of ours, explained, and all others.

    The program began so many seconds after the epoch.
    """
    found = [*[_ours(s, began) for s in ours], *[_plain(c, began) for c in plain]]
    found.sort(key=lambda fields: fields["start"])
    return tuple(Compilation(number=i, **fields) for i, fields in enumerate(found, 1))


def _ours(s: Seen, began: float) -> dict[str, Any]:
    from eqx_fastjit.insight._explain import arguments_text

    trace, why = s.trace, s.explanation
    found = () if why is None else why.differences
    wrapped, name = trace.wrapped(), trace.function.qualname
    cause = "first-call" if why is None else why.kind
    signature = arguments_text(trace.entries)
    return {
        "function": f"{name} of {wrapped[0]}" if wrapped else name,
        **at(function_place(trace)),
        "jit": "filter_jit",
        "site": str(s.site or line_of(trace.site) or ""),
        "start": trace.started - began,
        **stages([trace]),
        "cause": "failed" if trace.failed else cause,
        "cached": trace.cached,
        "inside": trace.inlined,
        "thread": trace.thread,
        "changes": tuple(
            Change(d.path, d.what, d.old, d.new) for d in found[:_MAX_CHANGES]
        ),
        "earlier": str((why and line_of(why.old.site)) or ""),
        "signature": signature[:_MAX_SIGNATURE],
        "argument_bytes": _argument_bytes(s.arrays.values()),
        "equations": None if s.inspection is None else s.inspection.equations,
        "program": s.program,
    }


def _plain(c: Compile, began: float) -> dict[str, Any]:
    miss = c.miss
    changes = ()
    if miss is not None and (miss.old or miss.new):
        changes = (Change(miss.leaf, miss.kind, miss.old, miss.new),)
    return {
        "function": c.name,
        **at(miss and miss.place),
        "jit": "jax" if miss is None else "jax.jit",
        "site": str(c.site or ""),
        "start": c.started - began,
        **stages([c]),
        "cause": "outside of jit" if miss is None else miss.kind,
        "cached": c.cached,
        "changes": changes,
        "thread": c.thread,
    }


def _argument_bytes(arrays: Collection[dict[str, str]]) -> int:
    """Of all arrays among the arguments, by shape and dtype."""
    sizes = [math.prod(map(int, re.findall(r"\d+", x["shape"]))) for x in arrays]
    return sum(n * _item_bytes(x["dtype"]) for n, x in zip(sizes, arrays, strict=True))


def _item_bytes(dtype: str) -> int:
    if dtype == "bool":
        return 1
    bits = re.search(r"(\d+)", dtype)
    # Keys, and dtypes without a size in their name, count as 8 bytes.
    return 8 if bits is None or dtype.startswith("key") else max(1, int(bits[1]) // 8)
