"""Everything that is known about each compilation."""

import math
import re
from collections.abc import Collection
from typing import Any

from ._causes import function_place, line_of
from ._plain import Compile
from ._report import at, Change, Compilation, stages
from ._watch import Seen


# Leaves that are listed, of those that differ.
_MAX_CHANGES = 100
_MAX_SIGNATURE = 2000


def make_compilations(
    ours: list[Seen], plain: list[Compile], began: float
) -> tuple[Compilation, ...]:
    """Each compilation in order: those of ours, explained, and all others.

    The program began so many seconds after the epoch.
    """
    rows = [*[_ours(s, began) for s in ours], *[_plain(c, began) for c in plain]]
    rows.sort(key=lambda row: row["start"])
    return tuple(Compilation(number=i, **row) for i, row in enumerate(rows, 1))


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
