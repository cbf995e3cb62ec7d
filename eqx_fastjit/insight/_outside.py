"""Operations outside of jit that lines compile again and again, in words.

Most are compiled once, as a program starts, and are no fault. What a line compiles
again and again is one: its operands have other shapes each time, or a function that it
is given is made anew.
"""

import collections
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from eqx_fastjit._facts import Place

from ._causes import Finding, make_finding
from ._events import Event
from ._file import Run
from ._first import look_at
from ._operations import Operation
from ._source import can_be_jitted
from ._why import line_of, OUTSIDE
from ._words import (
    listed,
    plural,
    shortened,
    show_chain,
    show_place,
    show_seconds,
    times,
)


# How often an operation is compiled at a line that is no accident: models may have
# layers of a few widths.
_LEAST = 5


class _Line(NamedTuple):
    """The operations that a line compiles again and again."""

    place: Place
    # Whether it calls a model, of which these are a part.
    is_model: bool
    # Those of one name, and of one line of a model.
    by_name: list[list[Event]]

    @property
    def events(self) -> list[Event]:
        """All of them."""
        return [*itertools.chain(*self.by_name)]


def operation_findings(
    events: Iterable[Event], run: Run
) -> tuple[list[Finding], list[Event]]:
    """What lines compile again and again; and all others."""

    def seen(event: Event) -> Operation:
        return look_at(run, event).operation

    groups: dict[Any, list[Event]] = {}
    rest: list[Event] = []
    for event in events:
        place = line_of(event)
        if place is None or seen(event).is_making:
            rest.append(event)
        else:
            key = seen(event).called_at, place, event.function.name
            groups.setdefault(key, []).append(event)
    lines: dict[Any, _Line] = {}
    # What is compiled most often first: the rest of a model goes with it.
    for key, found in sorted(groups.items(), key=lambda x: -len(x[1])):
        called_at, place, _ = key
        line = called_at, called_at or place
        has_many = seen(found[0]).has_many_operands
        if len(found) >= _LEAST or has_many or (called_at and line in lines):
            made = _Line(line[1], called_at is not None, [])
            lines.setdefault(line, made).by_name.append(found)
        else:
            rest += found
    findings: list[Finding] = []
    for line in lines.values():
        # A few calls of a model are for its sizes, say, and a program each in any case.
        if line.is_model and _n_calls(line, seen) < _LEAST:
            rest += line.events
        else:
            findings.append(_recompiled(line, seen))
    return findings, rest


def _n_calls(line: _Line, seen: Any) -> int:
    """How many calls of a model compiled something."""
    return len({seen(event).call for event in line.events})


def operations_following(
    events: Iterable[Event], run: Run, sizes: set[str]
) -> list[list[Event]]:
    """The operations that a line compiles once for each of most of some lengths.

    **Returns:** the compilations of each, two or more.
    """
    if not sizes:
        return []
    groups: dict[Any, list[Event]] = {}
    lengths: dict[Any, set[str]] = collections.defaultdict(set)
    for event in events:
        seen, key = look_at(run, event).operation, (line_of(event), event.function.name)
        if not seen.is_making and key[0] is not None:
            shapes = f"{seen.operands} {seen.results}"
            if own := sizes & {*_LENGTH.findall(shapes)}:
                groups.setdefault(key, []).append(event)
                lengths[key] |= own
    least = max(2, len(sizes) // 2)
    return [x for key, x in groups.items() if least <= len(x) <= len(lengths[key])]


# Of an array, in its text.
_LENGTH = re.compile(r"(?<=[\[,])\d+(?=[\],])")


def _recompiled(line: _Line, seen: Any) -> Finding:
    by_name = sorted(line.by_name, key=lambda x: (len(x) < _LEAST, -_seconds(x)))
    main, events = by_name[0], line.events
    operations = [seen(event) for event in main]
    kind = operations[0].differs_from(operations)
    if kind == "options":
        values = _varying([x.options for x in operations])
    else:
        values = [x.results if kind == "results" else x.operands for x in operations]
    others = dict.fromkeys(f"`{_name(x)}`" for x in by_name[1:])
    others.pop(f"`{_name(main)}`", None)
    body = operations[0].body
    is_growing = _is_growing([x.operands for x in operations])
    frames = main[0].frames
    whole = [*itertools.takewhile(can_be_jitted, frames)]
    own = f"what {show_place(frames[0])} computes, in a function of its own,"
    edit = "NumPy, or jit it" if operations[0].is_direct else "jit it"
    facts = {
        "operation": _name(main),
        "place": show_place(line.place),
        "times": plural(len(main), "time"),
        "others": f" (So are {listed(others, 4)}.)" if others else "",
        "values": listed((f"({shortened(x)})" for x in values), 4),
        "body": f"`{body}`" if body else "a function that it is given",
        "growing": _GROWING if is_growing else "",
        "numpy": _NUMPY if operations[0].is_direct else "",
        "shapes_edit": "one shape, or NumPy" if is_growing else edit,
        "where": _shown(whole[-1]) if whole else own,
        "short": _shown(whole[-1]) if whole else "it",
    }
    counts: collections.Counter[str] = collections.Counter()
    for found in by_name:
        counts[_name(found)] += len(found)
    firsts = sum(found[0].seconds for found in by_name)
    saves, otherwise = _seconds(events) - firsts, 0.0
    attribute = "shapes" if kind == "operands" else kind
    if operations[0].has_many_operands:
        saves, attribute = _seconds(events), "many operands"
    elif line.is_model:
        # In one function they are a program for each call with other lengths.
        if kind == "created again":
            attribute = "model again"
        else:
            attribute = "model"
            otherwise = min(saves, (_n_calls(line, seen) - 1) * firsts)
    return make_finding(
        OUTSIDE,
        facts,
        attribute,
        seconds=_seconds(events),
        saves=saves,
        otherwise=otherwise,
        line=line.place,
        count=len(events),
        functions=dict(counts.most_common()),
        calls=dict(collections.Counter(show_chain(e.frames) for e in main)),
    )


def of_several_lines(findings: Sequence[Finding]) -> Finding:
    """What lines compile again and again, each of which costs little."""
    found = sorted(findings, key=lambda x: -x.saves)
    functions: collections.Counter[str] = collections.Counter()
    for x in found:
        functions.update(x.functions)
    shown = (
        f"{x.what.replace(' outside of jit', '')} at {show_place(x.line)} "
        f"({times(x.count)}, {show_seconds(x.seconds)})"
        for x in found
    )
    return make_finding(
        OUTSIDE,
        {"n_lines": len(found), "lines": listed(shown, 8)},
        "several lines",
        seconds=sum(x.seconds for x in found),
        saves=sum(x.saves for x in found),
        otherwise=sum(x.otherwise for x in found),
        line=found[0].line,
        count=sum(x.count for x in found),
        functions=dict(functions.most_common()),
    )


def _shown(place: Place) -> str:
    return f"`{place.function.rpartition('.')[2]}`"


_NUMPY = (
    "On small arrays, NumPy does the same and compiles nothing, as `np.stack` in place "
    "of `jnp.stack`, in the same dtypes: from arrays of NumPy (`np.asarray(x)`) up to "
    "the jitted function that takes the result. "
)
# Where an array becomes longer and longer.
_GROWING = (
    "Keep what grows in a Python list, and stack it once, after the loop; or write "
    "into an array of the final size, `buffer.at[i].set(x)`, and mask what is not yet "
    "there. "
)


def _is_growing(shapes: list[str]) -> bool:
    """Whether a length is larger each time."""
    lengths = [[int(n) for n in _LENGTH.findall(text)] for text in shapes]
    axes = zip(*lengths, strict=False)
    return any(all(a < b for a, b in itertools.pairwise(x)) for x in axes)


def start_of(events: Sequence[Event]) -> Finding:
    """All that is compiled once, as a rule as a program starts."""
    places: collections.Counter[Place | None] = collections.Counter()
    for event in events:
        places[line_of(event)] += event.seconds  # pyright: ignore
    lines = [
        f"{show_place(x)} {show_seconds(n)}" for x, n in places.most_common(3) if x
    ]
    return make_finding(
        OUTSIDE,
        {"operations": plural(len(events), "operation"), "lines": listed(lines)},
        "once",
        seconds=_seconds(events),
        line=places.most_common(1)[0][0],
        count=len(events),
        functions=dict(collections.Counter(e.function.name for e in events)),
    )


def _name(events: Sequence[Event]) -> str:
    return events[0].function.name


def _seconds(events: Iterable[Event]) -> float:
    return sum(e.seconds for e in events)


def _varying(options: list[tuple[str, ...]]) -> list[str]:
    """The options that are not the same in all calls, each time."""
    shared = set(options[0]).intersection(*options)
    return list(
        dict.fromkeys(", ".join(x for x in o if x not in shared) for o in options)
    )
