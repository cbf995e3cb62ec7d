"""Two event files: what the new run compiles that the old one did not."""

import collections
import dataclasses
import os
from typing import Any

from ._events import Event
from ._file import Run
from ._why import arguments_of, name_of, why
from ._words import listed, plural, show_chain, show_seconds


@dataclasses.dataclass(frozen=True)
class New:
    """A compilation that the old run does not have. Seconds are in total."""

    function: str
    call: str
    cause: str
    # What differs from the calls of that function in the old run, as path and text.
    arguments: tuple[tuple[str, str], ...]
    count: int
    seconds: float


def compare_runs(old: Run, new: Run) -> tuple[New, ...]:
    """What is compiled in a new run and not in an old one, the most expensive first.

    Function by function, and signature by signature. Lines and directories may be
    others: a function is the same if its name and the name of its file are.
    """
    known = collections.Counter(map(_key, old.events))
    added: dict[Any, list[Event]] = {}
    for event in new.events:
        key = _key(event)
        if known[key] > 0:
            known[key] -= 1
        else:
            added.setdefault(key, []).append(event)
    before: dict[Any, set[tuple[str, str]]] = collections.defaultdict(set)
    for event in old.events:
        before[_function(event)].update(_signature(event))
    found: list[New] = []
    for events in added.values():
        first, seconds = events[0], sum(e.seconds for e in events)
        seen = before[_function(first)]
        other = tuple(x for x in _signature(first) if x not in seen)
        name, call = name_of(first.function), show_chain(first.frames)
        found.append(New(name, call, why(first), other, len(events), seconds))
    return tuple(sorted(found, key=lambda x: -x.seconds))


def _signature(event: Event) -> tuple[tuple[str, str], ...]:
    return tuple((leaf.path, str(leaf)) for leaf in arguments_of(event))


def _function(event: Event) -> Any:
    place = event.function.place
    return name_of(event.function), place and os.path.basename(place.file)


def _key(event: Event) -> Any:
    # A compilation that was not needed in the old run may be one of a known signature:
    # the function was created again, say.
    return _function(event), _signature(event), event.is_part


def comparison_lines(old: Run, new: Run, found: tuple[New, ...]) -> list[str]:
    """The comparison as text."""
    before, after = (show_seconds(sum(e.seconds for e in x.events)) for x in (old, new))
    lines = [
        f"{plural(sum(x.count for x in found), 'new compilation')}, "
        f"{show_seconds(sum(x.seconds for x in found))}; all of them: {before} in the "
        f"old run, {after} in the new one"
    ]
    for x in found:
        count = f" ({x.count} times)" if x.count > 1 else ""
        what = f"{x.function}{count}, {x.call}: {x.cause}"
        lines.append(f"  {show_seconds(x.seconds):>8}  {what}")
        if x.arguments:
            shown = listed((f"{path}: {text}" for path, text in x.arguments), 4)
            lines.append(f"            {shown}")
    return lines
