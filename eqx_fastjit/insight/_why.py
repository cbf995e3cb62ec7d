"""What the tools say of an event: why it is there, at which line, and what differs."""

from eqx_fastjit._facts import FunctionInfo, Place

from ._compare import Cause, Difference
from ._describe import Leaf
from ._events import Event
from ._words import show_place


# The cause of what is not under `filter_jit`.
OUTSIDE = "outside of filter_jit"


def name_of(function: FunctionInfo) -> str:
    """Its name, without those of the functions that it is defined in."""
    return function.qualname.rpartition("<locals>.")[2]


def title_of(function: FunctionInfo) -> str:
    """Name and place."""
    place = f" ({show_place(function.place)})" if function.place else ""
    return name_of(function) + place


def line_of(event: Event) -> Place | None:
    """The user's line that called it."""
    return event.frames[0] if event.frames else None


def arguments_of(event: Event) -> tuple[Leaf, ...]:
    """The arrays and the static arguments of the call."""
    kinds = ("array", "static")
    return tuple(x for x in event.signature if x.kind in kinds and not x.of)


def is_operation(event: Event) -> bool:
    """Whether it is of JAX, or a library's, rather than of a function of the user's."""
    return event.is_outside and event.function.place is None


def is_first(event: Event) -> bool:
    """Whether it is the first of its function, so that there is nothing to mend."""
    new = event.cause is Cause.NEW_FUNCTION and not event.reason.differences
    return new and not (is_operation(event) or event.failed or event.gone)


def cause_of(event: Event) -> str:
    """The cause in a word or two."""
    if event.failed:
        return "interrupted" if event.interrupted else "failed"
    return OUTSIDE if is_operation(event) else event.cause.value


def why(event: Event) -> str:
    """The cause, or that there is nothing to mend."""
    if event.is_part:
        return "ahead of time" if event.ahead else "inlined"
    if is_first(event):
        return "cell run again" if event.reason.earlier else "first call"
    return cause_of(event)


def stages_of(event: Event) -> dict[str, float]:
    """The seconds of each stage, those of functions inside taken off the trace."""
    trace = max(0.0, event.trace - event.nested)
    return {"trace": trace, "lower": event.lower, "compile": event.compile}


def show_difference(d: Difference) -> str:
    """A leaf that differs, in words."""
    if d.cause is Cause.NEW_FUNCTION:
        return f"`{d.path}` was created again"
    if d.cause is Cause.STATIC and d.looks_same:
        return f"`{d.path}`: {d.new}, but not the same as before"
    if d.old is None or d.new is None:
        return f"`{d.path}`: {d.old or 'nothing'} -> {d.new or 'nothing'}"
    old, new = str(d.old), str(d.new)
    if d.cause is Cause.PLACEMENT:
        old, new = show_placement(d.old), show_placement(d.new)
    elif d.looks_same:  # but for the weak type
        names = ("strong", "weak")
        old, new = (f"{names[x.weak_type]} {x.dtype}" for x in (d.old, d.new))
    elif old == new:
        old, new = f"{old} ({d.old.type})", f"{new} ({d.new.type})"
    return f"`{d.path}`: {old} -> {new}"


def show_placement(leaf: Leaf) -> str:
    """Where an array is: `cpu:0 (committed)`."""
    return f"{leaf.sharding} (committed)" if leaf.sharding else "not committed"
