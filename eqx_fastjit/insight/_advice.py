"""Groups of compilations in words: all causes, and what to do about each.

What mending a cause saves is counted by `_savings.py`. What cannot be mended, such as
models of several sizes, is the price of what is wanted. No edit is named that saves
nothing, whatever else is mended.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from ._attributes import attribute_of
from ._causes import Finding, make_finding, table
from ._describe import Cause
from ._events import Event
from ._groups import Group
from ._phrases import facts_of
from ._roots import Root
from ._savings import is_decided, Saved
from ._why import cause_of, is_first, show_difference
from ._words import listed, plural, show_place, show_seconds, times


# Leaves that are told to have differed.
_MAX_CHANGES = 100
# The most causes that are tried together.
_MAX_TOGETHER = 4


def can_be_mended(root: Root) -> bool:
    """Whether there is an edit."""
    return "edit" in table()[root.cause.value][attribute_of(root)]


class Diagnosis:
    """Which roots of a group to mend, and which are the price of what is wanted."""

    def __init__(self, group: Group):
        self.group = group
        mendable = [x for x in group.roots if can_be_mended(x)]
        others = [x for x in group.roots if x not in mendable]
        rest = group.table.without(_columns(mendable)) if group.table else ()
        # Of what the others decide, an edit saves nothing.
        self.mended = [x for x in mendable if not is_decided(rest, x.ids)]
        # Models of several sizes decide much else about them.
        sizes = [x.ids for x in others if attribute_of(x) == "models"]
        by = tuple(zip(*sizes, strict=True))
        self.price = [
            x
            for x in others
            if attribute_of(x) == "models" or not by or not is_decided(by, x.ids)
        ]
        if not self.mended and not self.price:
            self.price = mendable  # each is another program, whatever is mended
        # Of functions that follow.
        self.others = [Diagnosis(g) for g in group.others]

    @property
    def lengths(self) -> set[str]:
        """The lengths of arrays that can be one, in functions that follow, too."""
        own = {str(n) for root in self.mended for n in root.lengths}
        return own.union(*(x.lengths for x in self.others))

    def saved(self, roots: Iterable[Root]) -> Saved:
        """What it saves to mend these."""
        assert self.group.table is not None
        return self.group.table.saved(_columns(roots))

    @functools.cached_property
    def total(self) -> Saved:
        """What it saves to mend all that can be, in functions that follow, too."""
        return self._in_all(self.mended, [x.total for x in self.others])

    @functools.cached_property
    def same(self) -> Saved:
        """What of that is saved though the program computes with the same data."""
        own = [x for x in self.mended if not _is_other_data(x)]
        return self._in_all(own, [x.same for x in self.others])

    def _in_all(self, roots: Iterable[Root], others: list[Saved]) -> Saved:
        found = [self.saved(roots), *others]
        return Saved(sum(x.compilations for x in found), sum(x.seconds for x in found))

    @property
    def left(self) -> list[Event]:
        """What is compiled again even if all is mended that can be."""
        return self._without(self.mended) + [e for x in self.others for e in x.left]

    @property
    def left_by_data(self) -> list[Event]:
        """What more is, if the program computes with the same data."""
        same = self._without(x for x in self.mended if not _is_other_data(x))
        others = [e for x in self.others for e in x.left_by_data]
        left = self.left
        return [e for e in same if e not in left] + others

    def _without(self, roots: Iterable[Root]) -> list[Event]:
        assert self.group.table is not None
        ids = self.group.table.without(_columns(roots))
        rows = enumerate(self.group.table.rows)
        found = [row.event for i, row in rows if ids[i] == i and row.event is not None]
        return [e for e in found if not is_first(e)]

    def kept(self, root: Root) -> str:
        """What it costs to mend all but a root, and others of its kind, in words."""
        others = [x for x in self.mended if x is not root]
        for kept in ([x for x in others if not _is_other_data(x)], others):
            without, more = self.saved(kept), self.saved([*kept, root])
            if n := more.compilations - without.compilations:
                break
        seconds = show_seconds(more.seconds - without.seconds)
        return f"{plural(n, 'more compilation')} ({seconds})"

    def price_of(self, root: Root) -> float:
        """Seconds that it costs to want a root, if all is mended that can be."""
        more = self.saved([*self.mended, root])
        return more.seconds - self.saved(self.mended).seconds

    def gain(self, root: Root) -> tuple[Saved, str]:
        """What it saves to mend a root alone, and more in words."""
        alone = self.saved([root])
        if alone.compilations:
            return alone, f"{show_seconds(alone.seconds)} by itself"
        others = [x for x in self.mended if x is not root]
        others.sort(key=_is_other_data)
        for n in range(1, _MAX_TOGETHER):
            for partners in itertools.combinations(others, n):
                both = self.saved([root, *partners])
                if both.compilations > self.saved(partners).compilations:
                    names = listed((f"`{x.path}`" for x in partners), 3)
                    seconds = show_seconds(both.seconds)
                    return alone, f"nothing by itself; with {names} {seconds}"
        return alone, "nothing without all the others"


def _columns(roots: Iterable[Root]) -> set[Any]:
    return {column for root in roots for column in root.columns}


# --- in words -------------------------------------------------------------------------


def finding_of(found: Diagnosis) -> Finding:
    """A diagnosis in words."""
    group = found.group
    fields: dict[str, Any] = {
        "seconds": group.seconds,
        "line": group.line,
        "count": sum(not e.failed for e in group.whole),
        "functions": group.functions,
        "calls": group.calls,
    }
    if group.table is None or not group.roots:
        return make_finding(*_plain(group), **fields)
    parts = [_part(found, x, True) for x in found.mended]
    parts += [_part(found, x, False) for x in found.price]
    fields |= {
        "saves": found.total.seconds,
        "otherwise": found.total.seconds - found.same.seconds,
        "spares": found.total.compilations,
        "changes": _changes(group),
    }
    if len(parts) == 1:
        return dataclasses.replace(parts[0], **fields, gain="")
    return Finding(
        cause=parts[0].cause,
        attribute=parts[0].attribute,
        leaf=parts[0].leaf,
        what="; ".join(x.what for x in parts),
        says=_headline(group, parts) + _together(found) + _with_same_results(found),
        fix=" ".join(f"({i}) {x.fix}" for i, x in enumerate(parts, 1)),
        edit="; ".join(dict.fromkeys(x.edit for x in parts if x.edit)),
        note=" ".join(dict.fromkeys(x.note for x in parts if x.note)),
        parts=tuple(parts),
        **fields,
    )


def _plain(group: Group) -> tuple[str, dict[str, Any], str | None]:
    """Cause, facts and attribute of what has no roots."""
    attribute = "first call" if is_first(group.first) else None
    return cause_of(group.first), facts_of(group), attribute


def _part(found: Diagnosis, root: Root, is_mended: bool) -> Finding:
    alone, gain = found.gain(root) if is_mended else (Saved(0, 0.0), "")
    price = 0.0 if is_mended else found.price_of(root)
    return make_finding(
        root.cause.value,
        facts_of(found.group, root) | {"extra": found.kept(root)},
        attribute_of(root),
        leaf=root.path,
        count=root.count,
        seconds=price,
        saves=alone.seconds,
        spares=alone.compilations,
        gain=gain,
    )


def _headline(group: Group, parts: Sequence[Finding]) -> str:
    causes = "; ".join(f"{x.what} ({times(x.count)})" for x in parts)
    functions = listed((f"`{x}`" for x in group.functions), 2)
    n = times(len(group.whole))
    text = f"{functions} recompiled {n} at {show_place(group.line)}: {causes}."
    if sum(x.count for x in parts) < len(group.whole):
        text += " Each compiles again for each of the others' values."
    return text


# What leaves data out, or computes with other data, unless that is masked.
_OTHER_DATA = {"ragged batch", "lengths", "dtype"}


def _is_other_data(root: Root) -> bool:
    return attribute_of(root) in _OTHER_DATA


def _together(found: Diagnosis) -> str:
    """What all edits save, if that is more than what each does, in words."""
    alone = sum(found.saved([x]).seconds for x in found.mended)
    seconds = found.total.seconds
    more = len(found.mended) > 1 and seconds > alone
    return f" All edits together save {show_seconds(seconds)}." if more else ""


def _with_same_results(found: Diagnosis) -> str:
    """What is saved without the edits that change what is computed, in words."""
    others = [x for x in found.mended if _is_other_data(x)]
    if not 0 < len(others) < len(found.mended):
        return ""
    paths = dict.fromkeys(x.path for x in others)
    names = listed(f"`{x}`" for x in paths)
    stay = "stays as it is" if len(paths) == 1 else "stay as they are"
    return f" If {names} {stay}, the rest saves {show_seconds(found.same.seconds)}."


def _changes(group: Group) -> tuple[str, ...]:
    found = group.first.reason.differences[:_MAX_CHANGES]
    return tuple(show_difference(d) for d in found if d.cause is not Cause.NEW_FUNCTION)
