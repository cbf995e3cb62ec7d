"""What the tools know of a compilation: an event without the arguments' leaves.

A record can be written to a file and read again, and nothing else is lost by that: all
tools work on records, whether a program is running or ended long ago.
"""

import dataclasses
import threading
from typing import Any

from eqx_fastjit._describe import Cause, Difference
from eqx_fastjit._events import Event
from eqx_fastjit._place import Place


# The cause of what is not under `filter_jit`.
OUTSIDE = "outside of filter_jit"


@dataclasses.dataclass(frozen=True, eq=False)
class Record:
    """A trace of a function, or a compilation. Seconds are of the wall clock."""

    number: int
    function: str
    # Where the function was defined; where it was called, innermost line first; and
    # where the call was that it differs least from.
    place: Place | None
    frames: tuple[Place, ...]
    earlier: tuple[Place, ...]
    # Distinguishes functions that one line made. 0 outside of `filter_jit`.
    object: int
    cause: Cause
    differences: tuple[Difference, ...]
    # Path and text of each array and static argument.
    signature: tuple[tuple[str, str], ...]
    # Since the epoch.
    started: float
    is_main_thread: bool
    thread: int
    ahead: bool
    traced: bool
    failed: bool
    inlined: bool
    inside: int | None
    cached: bool
    trace: float
    lower: float
    compile: float
    first_run: float
    # The part of these that belongs to functions inside, which have records too.
    nested: float

    @property
    def seconds(self) -> float:
        """Spent on tracing, lowering and compiling. Each second is in one record."""
        return max(0.0, self.trace + self.lower + self.compile - self.nested)

    @property
    def is_outside(self) -> bool:
        """Whether it is of plain `jax.jit`, or of an operation outside of jit."""
        return self.object == 0

    @property
    def is_first(self) -> bool:
        """Whether it is the first of its function, so that there is nothing to mend."""
        new = self.cause is Cause.NEW_FUNCTION and not self.differences
        return new and not self.is_outside and not self.failed

    @property
    def why(self) -> str:
        """The cause in a word or two."""
        if self.failed:
            return "failed"
        if self.inlined:
            return "inlined"
        if self.is_first:
            return "first call"
        return OUTSIDE if self.is_outside else self.cause.value

    @property
    def line(self) -> Place | None:
        """The user's line that called it."""
        return self.frames[0] if self.frames else None

    @property
    def stages(self) -> dict[str, float]:
        """The seconds of each stage, those of functions inside taken off the trace."""
        trace = max(0.0, self.trace - self.nested)
        return {"trace": trace, "lower": self.lower, "compile": self.compile}


def record_of(event: Event) -> Record:
    """The record of an event that is complete."""
    shared = {f.name for f in dataclasses.fields(Record)}
    shared &= {f.name for f in dataclasses.fields(Event)} - {"function", "signature"}
    values: dict[str, Any] = {name: getattr(event, name) for name in shared}
    leaves = [x for x in event.signature if x.kind in ("array", "static") and not x.of]
    return Record(
        **values,
        **event.reason._asdict(),
        function=event.function.qualname.rpartition("<locals>.")[2],
        place=event.function.place,
        signature=tuple((leaf.path, str(leaf)) for leaf in leaves),
        object=event.function.number,
        is_main_thread=event.thread == threading.main_thread().ident,
    )


def show_difference(d: Difference) -> str:
    """A leaf that differs, in words."""
    if d.what == "function" and d.old is None:
        return f"`{d.path}` was created again"
    if d.what in ("function", "object"):
        return f"`{d.path}`: {d.new}, but not the same object as before"
    if d.old is None or d.new is None:
        return f"`{d.path}`: {d.old or 'nothing'} -> {d.new or 'nothing'}"
    old, new = str(d.old), str(d.new)
    if d.what == "sharding":
        old, new = f"on {d.old.sharding}", f"on {d.new.sharding}"
    elif d.what == "committed":
        names = ("uncommitted", "committed")
        old, new = names[d.old.committed], names[d.new.committed]
    elif d.what == "weak type":
        names = ("strong", "weak")
        old, new = (f"{names[x.weak_type]} {x.dtype}" for x in (d.old, d.new))
    elif old == new:
        old, new = f"{old} ({d.old.type})", f"{new} ({d.new.type})"
    return f"`{d.path}`: {old} -> {new}"
