"""What the tools say of an event: its name, at which line, and its seconds."""

import collections
from collections.abc import Iterable

from eqx_fastjit._facts import FunctionInfo, Place
from eqx_fastjit.insight._words import show_place

from ._events import Event
from ._leaves import Leaf


def short_name(qualname: str) -> str:
    """The name of a function, without those of the functions that it is defined in."""
    return qualname.rpartition("<locals>.")[2]


def name_of(function: FunctionInfo) -> str:
    """The short name of a jitted function."""
    return short_name(function.qualname)


def title_of(function: FunctionInfo) -> str:
    """Name and place."""
    place = f" ({show_place(function.place)})" if function.place else ""
    return name_of(function) + place


def line_of(event: Event) -> Place | None:
    """The user's line that called it."""
    return event.frames[0] if event.frames else None


def costliest(lines: Iterable[tuple[Place | None, float]]) -> Place | None:
    """The line that most seconds are of, of lines with seconds; `None` of no lines."""
    costs = collections.defaultdict[Place | None, float](float)
    for line, seconds in lines:
        costs[line] += seconds
    return max(costs, key=lambda x: costs[x], default=None)


def is_operation(event: Event) -> bool:
    """Whether it is of JAX, or a library's, rather than of a function of the user's."""
    return event.is_outside and event.function.place is None


def stages_of(event: Event) -> dict[str, float]:
    """The seconds of each stage, those of functions inside taken off the trace."""
    trace = max(0.0, event.trace - event.nested)
    return {"trace": trace, "lower": event.lower, "compile": event.compile}


def show_placement(leaf: Leaf) -> str:
    """Where an array is: `cpu:0 (committed)`."""
    return f"{leaf.sharding} (committed)" if leaf.sharding else "not committed"
