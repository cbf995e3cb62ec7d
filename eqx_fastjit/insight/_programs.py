"""What traces tell of what changes: whether a number that is static could be an array.

Traces that are equal but for literals do not depend on the number otherwise. If shapes
or the number of operations follow it, it has to stay static. And what a call is given
is carried from call to call if the one before has returned an array of that shape.
"""

import collections
import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

from eqx_fastjit import _facts
from eqx_fastjit._blocking import jaxprs_in, opened
from eqx_fastjit._texts import show_array

from ._equations import trace_of
from ._events import Event


# Digests: of operations and the shapes of what they compute; with their options, and
# what is passed from one to another; and with literals. Then what is returned; a digest
# of the operations and shapes, however often each is there; and how many are executed.
_SHAPES, _OPTIONS, _LITERALS, _RESULTS, _KINDS, _COUNT = range(6)
# In the text of a function.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# Values of arrays that are compared; of larger ones only which they are.
_MOST_VALUES = 64


def program_of(trace: Any) -> tuple[str, ...]:
    """What was traced, in digests; empty if it is not known."""
    try:
        return () if trace is None else _Digest().of(trace.jaxpr)
    except Exception:  # of an option of another library's primitive, say
        return ()


def add_programs(events: Sequence[Event]) -> None:
    """Add to events of this process what was traced, if it is kept."""
    known = {fact.number: fact for fact in tuple(_facts.history)}
    times = collections.Counter(e.function.key() for e in events)
    for e in events:
        if not e.program and e.number in known and times[e.function.key()] > 1:
            specialization = known[e.number].specialization()
            if specialization is not None:
                e.program = program_of(trace_of(e, specialization))


class _Digest:
    """Reads a jaxpr with all that are inside."""

    def __init__(self) -> None:
        self._hashes = [hashlib.md5(usedforsecurity=False) for _ in range(3)]
        self._seen: dict[int, int] = {}
        self._kinds: collections.Counter[str] = collections.Counter()
        # How often what is being read is executed.
        self._times = 1

    def of(self, jaxpr: Any) -> tuple[str, ...]:
        self._read(jaxpr)
        avals = [v.aval for v in opened(jaxpr).outvars if hasattr(v.aval, "dtype")]
        results = ";".join({show_array(x.shape, str(x.dtype)): 0 for x in avals})
        kinds = hashlib.md5(
            ";".join(sorted(self._kinds)).encode(), usedforsecurity=False
        )
        digests = (x.hexdigest() for x in self._hashes)
        return (*digests, results, kinds.hexdigest(), f"{self._kinds.total()}")

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
            kind = f"{e.primitive.name} {[str(v.aval) for v in e.outvars]}"
            self._kinds[kind] += self._times
            self._add(_SHAPES, kind)
            jaxprs = jaxprs_in(e)
            for name, option in sorted(e.params.items()):
                if not _has(option, jaxprs):
                    self._add(_OPTIONS, f"{name} {option}")
            outer = self._times
            self._times *= e.params["length"] if e.primitive.name == "scan" else 1
            for x in jaxprs:
                self._read(x)
            self._times = outer
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


def results_of(event: Event | None) -> set[str]:
    """The arrays that it returns, in words; empty if they are not known."""
    program = () if event is None else event.program
    return {*"".join(program[_RESULTS:_KINDS]).split(";")} - {""}


def is_in_proportion(values: Iterable[tuple[str, Event]]) -> bool:
    """Whether operations are executed in proportion to a number, as by a loop.

    They have the same shapes, unless it runs once or never. An `if` adds some, too; so
    there have to be three numbers or more.
    """
    events = {int(n): event for n, event in values if n.isdecimal()}
    kinds = {tuple(e.program[_KINDS:_COUNT]) for n, e in events.items() if n > 1}
    return len(kinds) == 1 and operations_for_each(events) > 0


def operations_for_each(events: Mapping[int, Event]) -> float:
    """How many operations more are executed for each one more of a number.

    0 if that is not known, or not the same for all: but a single iteration may be
    another one.
    """
    known = [(n, e.program[_COUNT:]) for n, e in sorted(events.items())]
    for least in (1, 2):
        counts = [(n, int(*count)) for n, count in known if count and n >= least]
        slopes = {(d - b) / (c - a) for (a, b), (c, d) in itertools.pairwise(counts)}
        if len(counts) > 2 and len(slopes) == 1:
            return slopes.pop()
    return 0.0


def difference_of(pairs: Sequence[tuple[Event | None, Event | None]]) -> str:
    """In what the traces of pairs of events differ.

    **Returns:** "nothing", "literals", "options", "shapes", or "" if it is not known.
    """
    found: list[list[bool]] = []
    for pair in pairs:
        programs = [x.program if x is not None else () for x in pair]
        if not all(programs):
            return ""
        found.append([a == b for a, b in zip(*programs, strict=True)])
    levels = {"nothing": _LITERALS, "literals": _OPTIONS, "options": _SHAPES}
    alike = (name for name, k in levels.items() if all(x[k] for x in found))
    return next(alike, "shapes") if found else ""
