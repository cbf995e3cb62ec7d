"""The row of a function: what its compilations cost, and each edit in words.

Evidence and savings are two questions. Whether something had to be static is told by
the programs: what differs between calls of one program had not. What an edit saves is
counted by what is left of the calls without it.
"""

import collections
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from eqx_fastjit.insight._words import listed
from eqx_fastjit.insight.compare._finding import objects_of, objects_within
from eqx_fastjit.insight.compare._objects import is_literal, Object
from eqx_fastjit.insight.compare._savings import Savings
from eqx_fastjit.insight.compare._table import Column, differs_within, Partition, Table
from eqx_fastjit.insight.record._events import Event
from eqx_fastjit.insight.record._why import costliest, line_of, name_of

from . import same_operations, same_program
from ._lines import line_of_edit
from ._rules import Case, Part, Row, Rule, rule_of
from ._wording import Wording
from .same_operations import LENGTH_NUMBER, NEEDED
from .same_program import DECIDES, DROPPED


RULES = (*same_program.RULES, *same_operations.RULES)

# By what is asked: of what differs between calls of one program; between programs; and
# of what cannot be a shape, where programs always differ.
_SAME = RULES
_OTHER = [x for x in same_operations.RULES if x is not LENGTH_NUMBER]
_NO_SHAPE = (LENGTH_NUMBER, *same_program.RULES)


class Diagnosis(NamedTuple):
    """What to edit so that a function compiles less."""

    # Things that calls differ in, each with the rule by which to mend it.
    edits: Mapping[Object, Rule]
    # What other programs are for.
    needed: Sequence[Object]
    savings: Savings


def rows(case: Case) -> Iterator[Row]:
    """A row for each function that compiled more than once.

    What the same edits at the same lines mend is one row.
    """
    by_edits: dict[object, list[Row]] = collections.defaultdict(list)
    spared: dict[object, list[Event]] = collections.defaultdict(list)
    for table in case.tables:
        if (found := row_of(table)) is None:
            continue
        row, events = found
        edits = tuple((x.rule, x.edit, x.line) for x in row.parts)
        key = edits if edits and all(x.line for x in row.parts) else table
        by_edits[key].append(row)
        spared[key] += events

    for key, several in by_edits.items():
        row = _joined(several)
        case.spare(row, spared[key])
        yield row


def _joined(rows: Sequence[Row]) -> Row:
    """One row for those of functions that have the same edits."""
    parts: list[Part] = []
    for alike in zip(*(x.parts for x in rows), strict=True):
        gains = [x.gain for x in alike if x.gain is not None]
        part = dataclasses.replace(
            alike[0],
            what=listed(x.what for x in alike),
            gain=sum(gains) if gains else None,
            **_sums(alike, "count", "saves"),
        )
        parts.append(part)

    names = ("seconds", "saves", "other_data", "wanted", "compilations", "programs")
    return dataclasses.replace(
        rows[0],
        function=listed(x.function for x in rows),
        parts=tuple(parts),
        **_sums(rows, *names),
    )


def _sums(items: Sequence[Any], *names: str) -> dict[str, Any]:
    return {name: sum(getattr(x, name) for x in items) for name in names}


def row_of(table: Table) -> tuple[Row, list[Event]] | None:
    """The row of a function, and the compilations that its edits spare.

    `None` if it compiled one program once.
    """
    if len(table.rows) < 2:
        return None

    diagnosis = diagnose(table)
    edits, savings = diagnosis.edits, diagnosis.savings
    total = savings.of(*edits)
    own = [i for i, x in enumerate(table.rows) if not x.is_before]
    left = [i for i in own if i not in total.rows]
    seconds = [table.rows[i].seconds for i in left]

    keeping = [x for x, rule in edits.items() if not rule.other_data]
    other_data = total.seconds - savings.of(*keeping).seconds
    row = Row(
        name_of(table.rows[0].event.function),
        (*_parts(table, diagnosis), *_needed_parts(table, diagnosis, left)),
        costliest((line_of(x.event), x.seconds) for x in table.rows),
        seconds=sum(table.rows[i].seconds for i in own),
        saves=total.seconds,
        other_data=max(0.0, other_data),
        # The costliest has to be compiled in any case.
        wanted=sum(seconds) - max(seconds, default=0.0),
        compilations=len(own),
        programs=len({table.programs[i] for i in own}),
    )
    return row, [table.rows[i].event for i in total.rows]


def _parts(table: Table, diagnosis: Diagnosis) -> Iterator[Part]:
    """The edits, those first that save most and keep the data; last the same again."""
    edits, savings = diagnosis.edits, diagnosis.savings
    last = [x for x, rule in edits.items() if rule.other_data]
    for found, gain in savings.ordered(edits, last):
        saves = savings.alone(found)
        yield _part(table, edits[found], found, saves=saves, gain=gain)

    again = savings.of()
    if again.rows:  # which are like earlier ones in everything
        yield DROPPED.part({}, count=len(again.rows), saves=again.seconds)


def _needed_parts(
    table: Table, diagnosis: Diagnosis, left: Sequence[int]
) -> Iterator[Part]:
    """What the programs differ in that are left."""
    # A number that is a length is told by the array that has it.
    for found in diagnosis.needed:
        if not found.is_length and len({found.ids[i] for i in left}) > 1:
            yield _part(table, NEEDED, found)


def _part(table: Table, rule: Rule, found: Object, **fields: Any) -> Part:
    facts = Wording(table, found)
    return rule.part(
        facts,
        path=found.path,
        values=tuple(facts.values),
        count=found.count,
        line=line_of_edit(found),
        **fields,
    )


# --- which rule it is of --------------------------------------------------------------


def diagnose(table: Table) -> Diagnosis:
    """Which objects to edit, by which rules."""
    within = objects_within(table)
    told = {c for x in within for c in x.columns}
    decides = _deciding(table, within, told)
    edits = {
        x: DECIDES if x is decides else rule
        for x in within
        if (rule := rule_of(_SAME, x))
    }

    between = objects_of(table, without=told)
    # A number, and an array in its place, are never of one program: so all rules of
    # these are asked here.
    others = {
        x: rule
        for x in between
        if (rule := rule_of([*_OTHER, *_SAME] if x.is_mixed else _OTHER, x))
    }
    edits |= others
    wide = frozenset(c for x in others for c in x.columns)
    # Where these always differ as well, no two programs are the same. What cannot be
    # a shape is then told by the kinds of operations.
    for x in between if wide else ():
        is_told = wide.issuperset(x.columns)
        is_asked = x.is_no_shape and not is_told and x.differs_within(table.kinds)
        if is_asked and (rule := rule_of(_NO_SHAPE, x)):
            edits[x] = rule

    savings = Savings(table, wide)
    kept = savings.fewest([*edits])
    needed = [x for x in between if x not in kept]
    return Diagnosis({x: edits[x] for x in kept}, needed, savings)


def _deciding(
    table: Table, within: Sequence[Object], told: Collection[Column]
) -> Object | None:
    """The value that decides between programs though it makes too many of one.

    Rows that are alike in it, and in all but what is `told` of such objects, are of one
    program; without it, of several. An object that is merely another one is made again,
    and decides nothing.
    """
    rest = table.alike(x for x in table.columns if x not in told)

    def leaves_several(*ids: Partition) -> bool:
        return differs_within(zip(rest, *ids, strict=True), table.programs)

    if not leaves_several():
        return None
    values = [x for x in within if x.kind in ("number", "label")]
    explains = [x for x in values if not leaves_several(table.alike(x.own))]
    # The one with the fewest values. If each row has its own, several are as good: one
    # that is no literal of the programs.
    return min(
        explains, key=lambda x: (x.count, is_literal(table, x.paths[0])), default=None
    )
