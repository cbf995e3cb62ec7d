"""Whether a number that is static could be an array, by the traces that were made.

Traces that are equal but for literals do not depend on the number otherwise. If shapes
or the number of operations follow it, it has to stay static.
"""

import hashlib
import re
from typing import Any

import jax

from eqx_fastjit._blocking import jaxprs_in, opened

from ._equations import trace_of
from ._events import Event
from ._roots import Root


# What a digest has: operations and the shapes of what they compute; their options, and
# what is passed from one to another; literals. Each has what is before, too.
_SHAPES, _OPTIONS, _LITERALS = range(3)
# In the text of a function.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# Values of arrays that are compared; of larger ones only which they are.
_MOST_VALUES = 64


def program_of(event: Event) -> tuple[str, ...]:
    """Digests of what has just been compiled; empty if it is not known."""
    try:
        traced = trace_of(event) if event.compile else None
        return () if traced is None else _Digest().of(traced.jaxpr)
    except Exception:  # of an option of another library's primitive, say
        return ()


class _Digest:
    """Reads a jaxpr with all that are inside."""

    def __init__(self) -> None:
        self._hashes = [hashlib.md5(usedforsecurity=False) for _ in range(3)]
        self._seen: dict[int, int] = {}

    def of(self, jaxpr: Any) -> tuple[str, ...]:
        self._read(jaxpr)
        return tuple(x.hexdigest() for x in self._hashes)

    def _add(self, level: int, text: str) -> None:
        for x in self._hashes[level:]:
            x.update(_ADDRESS.sub("", text).encode() + b";")

    def _read(self, jaxpr: Any) -> None:
        inner, consts = opened(jaxpr), getattr(jaxpr, "consts", ())
        known = self._seen.setdefault(id(inner), len(self._seen))
        self._add(_OPTIONS, f"{known}")
        if known != len(self._seen) - 1:
            return
        for x in consts:
            # What NumPy computed of a number, it could not compute of a tracer.
            self._add(_OPTIONS, f"{jax.typeof(x)} {_value(x)}")
        numbers: dict[Any, int] = {}
        for var in (*inner.constvars, *inner.invars):
            numbers[var] = len(numbers)
        for e in inner.eqns:
            self._add(_SHAPES, f"{e.primitive.name} {[str(v.aval) for v in e.outvars]}")
            jaxprs = jaxprs_in(e)
            for name, option in sorted(e.params.items()):
                if not _has(option, jaxprs):
                    self._add(_OPTIONS, f"{name} {option}")
            for x in jaxprs:
                self._read(x)
            self._passed(e.invars, numbers)
            for var in e.outvars:
                numbers[var] = len(numbers)
        self._passed(inner.outvars, numbers)

    def _passed(self, variables: Any, numbers: dict[Any, int]) -> None:
        for x in variables:
            if not hasattr(x, "val"):
                self._add(_OPTIONS, f"{numbers.get(x)}")
                continue
            level = _LITERALS if x.aval.shape == () else _OPTIONS
            self._add(_OPTIONS, f"{x.aval}")
            self._add(level, _value(x.val))


def _value(x: Any) -> str:
    return repr(x) if getattr(x, "size", 1) <= _MOST_VALUES else f"{id(x)}"


def _has(option: Any, jaxprs: list[Any]) -> bool:
    options = option if isinstance(option, tuple | list) else (option,)
    return any(x is y for x in options for y in jaxprs)


def follows(root: Root) -> str:
    """What follows a static that changes, by the traces.

    **Returns:** "nothing", "literals", "shapes", or "" if it is not known.
    """
    rows = root.table.rows
    rest = root.table.without(root.columns)
    programs = [row.event.program if row.event else () for row in rows]
    pairs = [(rest[i], i) for i in range(len(rows)) if root.ids[i] != root.ids[rest[i]]]
    # Where other objects differ each time, equal programs are an answer, too.
    columns = root.table.columns
    alike = root.table.classes(
        x for x in columns if x.aspect not in ("value", "function")
    )
    others = pairs or [
        (alike[i], i) for i in range(len(rows)) if root.ids[i] != root.ids[alike[i]]
    ]
    found = [
        [a == b for a, b in zip(programs[i], programs[k], strict=False)]
        for i, k in others
    ]
    if not found or not all(found):
        return ""
    if all(x[_OPTIONS] for x in found):
        return "nothing" if all(x[_LITERALS] for x in found) else "literals"
    return "shapes" if pairs and not all(x[_SHAPES] for x in found) else ""
