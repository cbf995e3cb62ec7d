"""Groups of compilations: those of a function, and what else the program compiled.

A compilation is in one group, so that seconds and counts add up. A length that changes
may make several functions compile: a smaller last batch comes to the loss and, as
`len(batch)`, to a metric. They are one group, and so is an array that is weakly typed
in several of them.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence

from eqx_fastjit._facts import Place

from ._describe import Cause, is_below, Leaf, shared
from ._events import Event
from ._roots import is_weak, Root, roots_of
from ._savings import Row, Table
from ._why import is_first, line_of, name_of
from ._words import show_chain


@dataclasses.dataclass(eq=False)
class Group:
    """Compilations, in order, with those of functions that are a part of them."""

    events: list[Event]
    # Whether they are the first of a function.
    is_first: bool = False
    # All compilations of the function, with their first one.
    table: Table | None = None
    # Those of other functions, for the same lengths. Their events are here, too.
    others: list["Group"] = dataclasses.field(default_factory=list["Group"])

    @property
    def first(self) -> Event:
        """The first of them, which stands for all."""
        return self.whole[0]

    def without(self, events: Sequence[Event]) -> "Group":
        """The group without compilations that are told elsewhere."""
        rest = [e for e in self.events if e not in events]
        return dataclasses.replace(self, events=rest)

    @functools.cached_property
    def roots(self) -> list[Root]:
        """Why they were compiled, what changed most often first."""
        return roots_of(self.table) if self.table is not None else []

    @functools.cached_property
    def line(self) -> Place | None:
        """The user's line that cost most."""
        costs: collections.Counter[Place | None] = collections.Counter()
        for event in self.whole:
            costs[line_of(event)] += event.seconds  # pyright: ignore
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
        """Function and lines that led to it, and how often; what cost most first."""
        costs: collections.Counter[str] = collections.Counter()
        for event in self.whole:
            costs[_call(event)] += event.seconds  # pyright: ignore
        counts = collections.Counter(map(_call, self.whole))
        return {call: counts[call] for call, _ in costs.most_common()}


def _call(event: Event) -> str:
    frames = event.frames
    if len(frames) > 1 and frames[-1].function == "<module>":
        frames = frames[:-1]  # of `main()`, say
    return f"`{name_of(event.function)}` at {show_chain(frames)}"


def group(events: Iterable[Event]) -> list[Group]:
    """All events but operations in groups, the most expensive first."""
    groups: dict[object, Group] = {}
    by_number = {e.number: e for e in sorted(events, key=lambda e: e.number)}
    # The compilations of each function, each with what is a part of it.
    functions: dict[object, dict[int, list[Event]]] = {}
    for event in by_number.values():
        outermost = _outermost(event, by_number)
        if outermost.failed:
            how = "interrupted" if outermost.interrupted else "failed"
            key = outermost.function.key(), line_of(outermost), how
            groups.setdefault(key, Group([])).events.append(event)
        else:
            key = shared(outermost), outermost.is_part and not outermost.ahead
            own = functions.setdefault(key, {})
            own.setdefault(outermost.number, []).append(event)
    found = list(groups.values())
    for compilations in functions.values():
        found += _of_function(list(_with_stages(compilations.values())))
    return sorted(_merged(found), key=lambda g: -g.seconds)


def _outermost(event: Event, by_number: dict[int, Event]) -> Event:
    """What a function was traced for, if it is a part of another one."""
    while event.is_part and event.inside in by_number:
        event = by_number[event.inside]
    return event


def _with_stages(compilations: Iterable[list[Event]]) -> Iterable[list[Event]]:
    """With stages ahead of time as parts of the one that compiles."""
    waiting: list[list[Event]] = []
    for events in compilations:
        first = min(events, key=lambda e: e.number)
        if first.ahead and first.is_part:
            waiting.append(events)
            continue
        for stage in [x for x in waiting if x[0].signature == first.signature]:
            waiting.remove(stage)
            events = [*stage, *events]
        yield events
    yield from waiting


def _of_function(compilations: Sequence[list[Event]]) -> Iterable[Group]:
    """The first compilation of a function, and the others."""
    firsts: list[Event] = []
    others: list[Event] = []
    rows: list[Row] = []
    for events in compilations:
        event = next((e for e in events if not e.is_part), events[0])
        seconds = sum(e.seconds for e in events)
        leaves = {leaf.path: leaf for leaf in event.signature}
        row = Row(event, event.function.number, leaves, seconds)
        if not is_first(event):
            rows = rows or [_earlier(row, event)]
        rows.append(row)
        (firsts if is_first(event) else others).extend(events)
    if firsts:
        yield Group(firsts, is_first=True)
    if others:
        yield Group(others, table=Table(others[0].function.name, rows))


def _earlier(row: Row, event: Event) -> Row:
    """The call that an event was compared with, as far as the differences tell."""
    differences = event.reason.differences
    gone = [d.path for d in differences]
    leaves: dict[str, Leaf] = {
        path: leaf
        for path, leaf in row.leaves.items()
        if not any(path == x or is_below(path, x) for x in gone)
    }
    leaves |= {d.path: d.old for d in differences if d.old is not None}
    is_new = any(d.cause is Cause.NEW_FUNCTION for d in differences)
    return Row(None, 0 if is_new else row.number, leaves)


# --- one array, several functions -----------------------------------------------------


def _merged(groups: list[Group]) -> list[Group]:
    """Without groups that are there because of what another one is there for."""
    marks = {id(g): _marks(g) for g in groups}
    out: list[Group] = []
    # Arrays come before numbers that follow them.
    for candidate in sorted(
        groups, key=lambda g: (-_has_arrays(g), -len(marks[id(g)]))
    ):
        own = marks[id(candidate)]
        around = [
            g
            for g in out
            if own <= marks[id(g)] and _has_arrays(g) and _take_turns(g, candidate)
        ]
        if own and around:
            around[0].others.append(candidate)
        else:
            out.append(candidate)
    for found in out:
        found.events += itertools.chain(*(g.events for g in found.others))
        found.events.sort(key=lambda e: e.number)
    return out


def _has_arrays(group: Group) -> bool:
    return any(x.cause in (Cause.SHAPE, Cause.DTYPE) for x in group.roots)


def _take_turns(*groups: Group) -> bool:
    """Whether compilations of two groups follow each other, as in one loop."""
    order = sorted((e.number, i) for i, g in enumerate(groups) for e in g.whole)
    turns = sum(x != y for (_, x), (_, y) in itertools.pairwise(order))
    return turns >= min(len(g.whole) for g in groups)


def _marks(group: Group) -> set[int | str]:
    """The lengths that arrays had, or the numbers that a static was, if that is all.

    Or the paths of what is weakly typed.
    """
    found: set[int | str] = set()
    for root in group.roots:
        if is_weak(root.table, root.own[0]):
            found.update(root.paths)
            continue
        numbers = [x.text for x in root.leaves if x is not None and x.kind == "static"]
        if root.sizes or _is_one_array(root):
            found.update(root.lengths)
        elif len(numbers) == len(root.leaves) and all(map(str.isdecimal, numbers)):
            found.update(map(int, numbers))
        else:
            return set()
    return found


def _is_one_array(root: Root) -> bool:
    """Whether the lengths of axes of one array differ, and nothing else."""
    is_axes = all(x.aspect == "axis" for x in root.own)
    return root.cause is Cause.SHAPE and is_axes and len(root.paths) == 1
