"""Groups of compilations: what changed in the program's calls, by line, leaf and cause.

A compilation is in one group, so that seconds and counts add up. One change may make
several functions compile: a smaller last batch comes to the loss and, as `len(batch)`,
to a metric. They are one group, by the lengths that changed.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterable

from eqx_fastjit._facts import Place

from ._describe import Cause, Difference
from ._events import Event
from ._why import is_first, is_operation, line_of, name_of
from ._words import show_chain


@dataclasses.dataclass(eq=False)
class Group:
    """Compilations for one reason, in order."""

    events: list[Event]
    # Whether they are the first of a function, also of one of the user's `jax.jit`.
    is_first: bool = False

    @property
    def first(self) -> Event:
        """The first of them, which stands for all."""
        return self.events[0]

    @property
    def main(self) -> Difference | None:
        """What differed, the most important leaf first."""
        found = self.first.reason.differences
        return found[0] if found else None

    @property
    def leaf(self) -> str:
        """The path of the leaf that differed; empty if none did."""
        return self.main.path if self.main else ""

    @functools.cached_property
    def line(self) -> Place | None:
        """The user's line; of operations, that which cost most."""
        if not is_operation(self.first):
            return line_of(self.first)
        costs: collections.Counter[Place | None] = collections.Counter()
        for event in self.events:
            costs[_maker(event)] += event.seconds  # pyright: ignore
        return costs.most_common(1)[0][0]

    @property
    def seconds(self) -> float:
        """What they cost."""
        return sum(e.seconds for e in self.events)

    @property
    def whole(self) -> list[Event]:
        """Without functions that are a part of others."""
        return [e for e in self.events if not e.is_part] or self.events

    @property
    def functions(self) -> dict[str, int]:
        """The names of the functions, and how often each was compiled."""
        names = [name_of(event.function) for event in self.whole]
        return dict(collections.Counter(names).most_common())

    @property
    def calls(self) -> dict[str, int]:
        """Function and lines that led to it, and how often each did."""
        return dict(collections.Counter(map(self._call, self.whole)))

    def _call(self, event: Event) -> str:
        if not is_operation(self.first):
            return f"`{name_of(event.function)}` at {show_chain(event.frames)}"
        frames = event.frames  # of many operations, the lines below do not matter
        begin = frames.index(self.line) if self.line in frames else 0
        return show_chain(frames[begin:])

    @property
    def changes(self) -> list[Difference]:
        """What that leaf was and became, in order."""
        cause = self.main and self.main.cause
        found = (d for e in self.whole for d in e.reason.differences)
        return [d for d in found if (d.path, d.cause) == (self.leaf, cause)]


def _maker(event: Event) -> Place | None:
    """The line that made JAX compile an operation.

    What an `__init__` makes is of the function that called the class.
    """
    return next((x for x in event.frames if ".__init__" not in x.function), None)


def group(events: Iterable[Event]) -> list[Group]:
    """All events in groups, the most expensive first."""
    groups: dict[object, Group] = {}
    by_number = {e.number: e for e in sorted(events, key=lambda e: e.number)}
    # The first compilation of a function of the user's under plain `jax.jit`.
    jitted: dict[object, Event] = {}
    for event in by_number.values():
        starts = is_first(event)
        if is_operation(event):
            line = _maker(event)
            key: object = line and (line.file, line.function)
        elif event.is_outside:
            starts = jitted.setdefault(event.function.key(), event) is event
            key = event.function.key(), starts
        else:
            key = _key(_outermost(event, by_number))
        groups.setdefault(key, Group([], starts)).events.append(event)
    return sorted(_merged(list(groups.values())), key=lambda g: -g.seconds)


def _outermost(event: Event, by_number: dict[int, Event]) -> Event:
    """What a function was traced for, if it is a part of another one."""
    while event.inside in by_number:
        event = by_number[event.inside]
    return event


def _key(event: Event) -> object:
    line, function = line_of(event), event.function.key()
    at = line and (line.file, line.line)
    if event.failed or is_first(event):
        return function, at, event.failed
    # Nothing differs if JAX's caches were cleared.
    what = [(d.path, d.cause) for d in event.reason.differences[:1]]
    return function, at, event.cause, *what


# --- one change, several functions ----------------------------------------------------


def _merged(groups: list[Group]) -> list[Group]:
    """Without groups that are there because of the lengths of another one."""
    lengths = {id(g): _lengths(g) for g in groups}
    shapes = [g for g in groups if g.first.cause is Cause.SHAPE]
    shapes.sort(key=lambda g: -len(lengths[id(g)]))
    out: list[Group] = []
    for candidate in [*shapes, *(g for g in groups if g not in shapes)]:
        own = lengths[id(candidate)]
        around = [
            g
            for g in out
            if g in shapes and own <= lengths[id(g)] and _take_turns(g, candidate)
        ]
        if own and around:
            around[0].events += candidate.events
            around[0].events.sort(key=lambda e: e.number)
        else:
            out.append(candidate)
    return out


def _take_turns(*groups: Group) -> bool:
    """Whether compilations of two groups follow each other, as in one loop."""
    order = sorted((e.number, i) for i, g in enumerate(groups) for e in g.whole)
    turns = sum(x != y for (_, x), (_, y) in itertools.pairwise(order))
    return turns >= min(len(g.whole) for g in groups)


def _lengths(group: Group) -> set[int]:
    """The lengths that an array had, or the numbers that a static was."""
    found: set[int] = set()
    if group.first.failed:
        return found  # its message says more
    for d in group.changes:
        if d.old is None or d.new is None:
            return set()
        if d.cause is Cause.SHAPE:
            pairs = zip(d.old.shape, d.new.shape, strict=False)
            found.update(n for pair in pairs if pair[0] != pair[1] for n in pair)
        elif d.old.text.isdecimal() and d.new.text.isdecimal():
            found.update((int(d.old.text), int(d.new.text)))
        else:
            return set()
    return found
