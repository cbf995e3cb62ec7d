"""What a function compiled for nothing, and which edits spare it.

Evidence and savings are two questions. Whether something had to be static is told by
the programs: what differs between calls of one program had not. What an edit saves is
counted by what is left of the calls without it.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

from eqx_fastjit._facts import Place

from ._describe import is_below, Leaf, shared
from ._events import Event
from ._objects import (
    in_proportion,
    is_literal,
    is_number,
    module_of,
    Object,
    objects_of,
)
from ._rules import Part, part_of, Row
from ._table import Column, compilation_of, Saved, Table
from ._why import show_placement
from ._words import listed


# The most sets of edits of one size that are tried.
_MAX_TRIED = 200
# The fewest lengths that are not there for a purpose each, such as a test set's.
_SEVERAL = 3
# Rules of calls of the same operations: they remove shapes and counts, not only what
# programs have in common. The first compute with other data.
_OTHER_DATA = ("batch", "lengths", "dtype")
_NEEDED = "other-program"


@dataclasses.dataclass(frozen=True, eq=False)
class Diagnosis:
    """What to edit so that a function compiles less."""

    table: Table
    # By rule; what has to be compiled is not among them.
    edits: tuple[tuple[str, Object], ...]
    # What other programs are for.
    needed: tuple[Object, ...]

    @functools.cached_property
    def wide(self) -> set[Column]:
        """The columns by which programs differ that could be one."""
        one = (x for _, x in self.edits if x.differs_within(self.table.programs))
        is_one = {x for x in one if not x.is_mixed}
        is_one |= {x for rule, x in self.edits if x.is_no_shape and not x.is_mixed}
        return {c for _, x in self.edits if x not in is_one for c in x.columns}

    def saved(self, objects: Iterable[Object]) -> Saved:
        """What it saves to mend these."""
        columns = {c for x in objects for c in x.columns}
        return self.table.saved(columns - self.wide, columns & self.wide)

    @property
    def total(self) -> Saved:
        """What all edits save."""
        return self.saved(x for _, x in self.edits)

    @functools.cached_property
    def ordered(self) -> list[tuple[str, Object, float | None]]:
        """The edits, each with what it saves in addition to those before it.

        Some only save together: then the first of them has the seconds.
        """
        left, chosen, done = list(self.edits), list[Object](), Saved((), 0.0)
        out: list[tuple[str, Object, float | None]] = []
        while left:
            together, saved = self._next(left, chosen, done)
            for i, (rule, found) in enumerate(together):
                out.append((rule, found, None if i else saved.seconds - done.seconds))
                chosen.append(found)
            left = [x for x in left if x not in together]
            done = saved
        return out

    def _next(
        self, left: list[tuple[str, Object]], chosen: list[Object], done: Saved
    ) -> tuple[Sequence[tuple[str, Object]], Saved]:
        """The fewest edits that save more than those before, and what all save."""
        for n in range(1, len(left)):
            tried = [*itertools.islice(itertools.combinations(left, n), _MAX_TRIED)]
            found = [(x, self.saved([*chosen, *(y for _, y in x)])) for x in tried]
            best = max(found, key=lambda x: x[1].seconds)
            if len(best[1].rows) > len(done.rows):
                return best
        return left, self.saved([*chosen, *(x for _, x in left)])


def diagnose(table: Table) -> Diagnosis:
    """Which objects to edit, by which rules."""
    objects = objects_of(table)
    within = [x for x in objects if x.differs_within(table.programs)]
    same = [x for x in within if not x.is_mixed]
    decides = _deciding(table, same)
    edits = [("decides" if x is decides else _rule_of_same(x), x) for x in same]
    rest = [x for x in objects if x not in same]
    wide = [(rule, x) for x in rest if (rule := _rule_of_other(x))]
    # Where these always differ as well, no two programs are the same. What cannot be
    # a shape is then told by the kinds of operations.
    again = [
        x for x in rest if wide and x.is_no_shape and x.differs_within(table.kinds)
    ]
    again = [x for x in again if x not in (y for _, y in wide)]
    edits += [*wide, *((_rule_of_same(x), x) for x in again)]
    needed = [x for x in rest if x not in (y for _, y in edits)]
    diagnosis = Diagnosis(table, tuple(edits), tuple(needed))
    saved = diagnosis.total.rows
    # What saves nothing, whatever else is mended, is no edit.
    kept = [
        (rule, x)
        for rule, x in edits
        if diagnosis.saved(y for _, y in edits if y is not x).rows != saved
    ]
    if kept or not saved:
        dropped = [x for rule, x in edits if (rule, x) not in kept]
        others = [x for x in dropped if x not in same]
        return Diagnosis(table, tuple(kept), (*needed, *others))
    return diagnosis


def _deciding(table: Table, same: Sequence[Object]) -> Object | None:
    """The object that decides between programs though it makes too many of one.

    Rows that are alike in all else, and in it, are of one program, and not without it.
    """
    known = [x for x in same if x.kind in ("number", "label", "object")]
    removed = {c for x in same for c in x.columns}
    rest = table.alike(x for x in table.columns if x not in removed)

    def n_of(ids: Iterable[Any]) -> int:
        return len({*ids})

    if n_of(zip(rest, table.programs, strict=True)) == n_of(rest):
        return None
    explains = [
        x
        for x in known
        if n_of(zip(rest, x.ids, table.programs, strict=True))
        == n_of(zip(rest, x.ids, strict=True))
    ]
    # Of several with a value for each row, one that is no literal of the programs.
    return min(
        explains, key=lambda x: (x.count, is_literal(table, x.paths[0])), default=None
    )


# By the kind of an object that differs between calls of one program.
_SAME = {
    "function": "function",
    "callable": "function",
    "optimiser": "optimiser",
    "object": "object",
    "label": "label",
    "structure": "structure",
    "weak": "weak-type",
    "placement": "placement",
    "setting": "setting",
    "size": "lengths",
    "dtype": "dtype",
}


def _rule_of_same(found: Object) -> str:
    leaf, table = found.leaves[-1], found.table
    if found.kind == "array":
        return "array-in-static" if leaf is None or leaf.of else "static-field"
    if found.kind != "number":
        return _SAME[found.kind]
    if leaf is not None and leaf.of:
        return "configuration"
    if table.rows[-1].event.is_outside:
        return "static-argnames"
    return "module-number" if _is_parameter(found) else "number"


def _is_parameter(found: Object) -> bool:
    """Whether a number would be a parameter of a model if it were an array in it."""
    module = module_of(found.table, found.paths[0])
    leaves = found.table.rows[-1].leaves
    trained = any(
        leaf.kind == "array" and is_below(path, module) and leaf.dtype.startswith("f")
        for path, leaf in leaves.items()
    )
    is_float = any(x is not None and "float" in x.type for x in found.leaves)
    return bool(module) and trained and is_float


def _rule_of_other(found: Object) -> str | None:
    """The rule of an object by which programs of the same operations differ."""
    kind = found.kind
    is_alike = found.differs_within(found.table.kinds)
    if kind == "number":
        if found.is_mixed:
            return "begin-alike" if found.is_carried else "number"
        return "loop-count" if _is_loop_count(found) else None
    if kind == "weak":
        return "weak-type"
    if kind in ("size", "dtype", "structure") and found.is_carried:
        if len(found.sizes) > 2 or len(found.elements) > 2:
            return "grows"
        if str(found.leaves[0]) != "None":
            return "begin-alike"
        return "none-first" if is_alike else None
    if found.is_model or not is_alike:
        return None
    if kind == "dtype":
        return "dtype"
    sizes = found.sizes or found.elements
    if kind == "structure":
        n = len(sizes)
        grows = n > 2 and all(a < b for a, b in itertools.pairwise(sizes))
        return "grows" if grows else "lengths" if n >= _SEVERAL else None
    if kind != "size":
        return None
    if len(sizes) == 2 and sizes[0] > sizes[1] and _is_batch(found):
        return "batch"
    return "lengths" if found.count + 1 >= _SEVERAL else None


def _is_batch(found: Object) -> bool:
    """Whether a smaller one comes to the same line, along the first axis."""
    lines = {row.event.frames[:1] for row in found.table.rows}
    return len(lines) == 1 and {x.axis for x in found.own} == {0}


def _is_loop_count(found: Object) -> bool:
    """Whether operations are there more or fewer times, as a number says."""
    table = found.table
    rest = table.alike(x for x in table.columns if x not in found.columns)
    classes: dict[Any, list[tuple[int, int]]] = {}
    for i, row in enumerate(table.rows):
        leaf = row.leaves.get(found.paths[0])
        if row.program is not None and leaf is not None and leaf.text.isdecimal():
            pairs = classes.setdefault((rest[i], row.program.kinds), [])
            pairs.append((int(leaf.text), row.program.size))
    return any(map(in_proportion, classes.values()))


# --- in words -------------------------------------------------------------------------


def row_of(
    name: str, table: Table, line: Place | None
) -> tuple[Row, list[Event]] | None:
    """The row of a function, and the compilations that its edits spare.

    `None` if it compiled one program once.
    """
    rows = [x for x in table.rows if not x.is_before]
    if len(table.rows) < 2:
        return None
    found = diagnose(table)
    total = found.total if found.edits else _again(table)
    same = total
    if found.edits:
        same = found.saved(x for rule, x in found.edits if rule not in _OTHER_DATA)
    parts = [_part(found, rule, x, gain) for rule, x, gain in found.ordered]
    if not found.edits and total.rows:
        fields: Any = {"count": len(total.rows), "saves": total.seconds}
        parts.append(part_of("dropped", {}, gain=total.seconds, **fields))
    left = [i for i, x in enumerate(table.rows) if x in rows and i not in total.rows]
    parts += [
        _part(found, _NEEDED, x, 0.0)
        for x in found.needed
        if len({x.ids[i] for i in left}) > 1
    ]
    seconds = [table.rows[i].seconds for i in left]
    row = Row(
        name,
        tuple(parts),
        line,
        seconds=sum(x.seconds for x in rows),
        saves=total.seconds,
        other_data=max(0.0, total.seconds - same.seconds),
        wanted=sum(seconds) - max(seconds, default=0.0),
        compilations=len(rows),
        programs=len(
            {table.programs[i] for i, x in enumerate(table.rows) if x in rows}
        ),
    )
    return row, [table.rows[i].event for i in total.rows]


def same_program_again(event: Event, earlier: Iterable[Event]) -> list[Part] | None:
    """What differs from the latest earlier event of the same program, with the edits.

    `None` if there is none.
    """
    if event.program is None:
        return None
    key = shared(event)
    for old in reversed([*earlier]):
        if (
            old is not event
            and old.program is not None
            and old.program.same == event.program.same
            and shared(old) == key
        ):
            rows = [compilation_of(x, [x]) for x in (old, event)]
            found = row_of("", Table(event.function.name, rows), None)
            return list(found[0].parts) if found else []
    return None


def _again(table: Table) -> Saved:
    """The rows that are like earlier ones in everything, and of the same program."""
    same = table.alike(table.columns)
    seen: set[Any] = set()
    out: list[int] = []
    for i, key in enumerate(zip(same, table.programs, strict=True)):
        if key in seen and not table.rows[i].is_before:
            out.append(i)
        seen.add(key)
    return Saved(tuple(out), sum(table.rows[i].seconds for i in out))


def _part(diagnosis: Diagnosis, rule: str, found: Object, gain: float | None) -> Part:
    values = _values(found)
    return part_of(
        rule,
        _facts(diagnosis.table, found, values),
        path=found.path,
        values=tuple(values),
        count=found.count,
        saves=diagnosis.saved([found]).seconds if rule != _NEEDED else 0.0,
        gain=gain,
        other_data=rule in _OTHER_DATA,
        line=_line_of_edit(diagnosis.table, found),
    )


def _values(found: Object) -> list[str]:
    """What its first leaf was, in order, each once."""
    path = found.paths[0]
    leaves = list(dict.fromkeys(found.table.leaves(path)))
    if found.kind == "function":
        return []
    if found.kind == "placement":
        return list(dict.fromkeys(show_placement(x) for x in leaves if x))
    types = {x.type for x in leaves if x is not None and x.kind == "static"}

    def show(x: Leaf | None) -> str:
        if x is None:
            return "nothing"
        # A class that is not Python's own stands in the text.
        is_clear = len(types) < 2 or x.kind != "static" or "." in x.type
        return str(x) if is_clear else f"{x} ({x.type})"

    return list(dict.fromkeys(map(show, leaves)))


def _facts(table: Table, found: Object, values: list[str]) -> dict[str, Any]:
    leaf = table.leaf(found.paths[0])
    sizes = found.sizes or found.elements or [0]
    path = found.path
    types = {x.type for x in found.leaves if x is not None and x.kind == "static"}
    # Where an `int` comes to some calls, arrays would have two dtypes.
    number = f"float({path})" if types == {"int", "float"} else path
    axes = [
        max((int(v) for v in table.values(x) if str(v).isdecimal()), default=0)
        for x in found.own
        if x.aspect == "axis"
    ]
    changed = [x for x in found.leaves if x is not None]
    return {
        "path": f"{path}()" if found.kind == "function" else path,
        "values": listed(map(_short, values), 3),
        "array": f"jnp.asarray({number})",
        "owner": (leaf and leaf.of) or "object",
        "programs": len({*table.programs}),
        "first": values[0] if values else "",
        "last": values[-1] if values else "",
        "first_size": sizes[0],
        "last_size": sizes[-1],
        # The last call may write one more than it was given.
        "room": sizes[-1] + max(1, sizes[-1] - sizes[-2:][0]),
        "most": max([*axes, *sizes]),
        "type": changed[-1].type if changed else "",
        **_closure(table, found),
    }


def _short(text: str) -> str:
    """A number with four digits."""
    is_long = re.fullmatch(r"-?\d*\.\d{5,}(e-?\d+)?", text)
    return f"{float(text):.4g}" if is_long else text


# In a path: a variable that a function refers to, or that a partial binds.
_CELL = re.compile(r"<(\w+)>|\.(?:keywords|args)\['?(\w+)'?\]")


def _closure(table: Table, found: Object) -> dict[str, str]:
    """What a function refers to that is not the same, and what to do with that."""
    if found.kind not in ("function", "callable"):
        return {"cells": "", "passed": ""}
    cells: dict[str, str] = {}
    for path in table.varying:
        leaf = table.leaf(path)
        if is_below(path, found.path) and leaf is not None and leaf.of:
            cell = _CELL.search(path, len(found.path))
            if cell is not None:  # of all that is in one, the variable is told
                cells.setdefault(cell[1] or cell[2], path[: cell.end()])
    shown: list[str] = []
    passed: list[str] = []
    made: list[str] = []
    for name, path in cells.items():
        values = listed((str(x) for x in table.leaves(path) if x is not None), 2)
        shown.append(f"{name} {values}")
        leaf = table.leaf(path)
        is_dynamic = is_number(leaf) or (leaf is not None and bool(leaf.dtype))
        (passed if is_dynamic else made).append(name)
    text = f"; pass {listed(passed)}" if passed else ""
    text += f"; make {listed(made)} once, too" if made else ""
    return {"cells": f": {listed(shown, 3)}" if shown else "", "passed": text}


def _line_of_edit(table: Table, found: Object) -> Place | None:
    """Where what differs is made, if that is known."""
    return table.rows[-1].event.function.place if found.kind == "function" else None
