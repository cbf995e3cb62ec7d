"""What loops spend on operations outside of jit that are compiled already.

The main thread is sampled (`_sampled.py`). What is found is told by the outermost
function in such a loop that calls nothing jitted, so that all of it can be one call.
"""

import collections
import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from eqx_fastjit._facts import Place

from ._causes import Finding, make_finding
from ._events import Event
from ._file import Run
from ._source import can_be_jitted, is_in_comprehension
from ._why import line_of, OUTSIDE
from ._words import listed, plural, show_place, show_seconds


# The share of the operations of a function from which it only puts arrays together.
_NEARLY_ALL = 0.9
# The share of the limit that operations have to be worth without their compilations.
_OF_LIMIT = 0.5


def warm_findings(
    run: Run, repeated: Sequence[Finding], starting: Sequence[Event], limit: float
) -> tuple[list[Finding], list[Finding], list[Event]]:
    """What is worth the `limit`, in seconds.

    **Returns:** the findings of what lines compile again and again, with what these
    lines spend so; those of other lines, with what they have compiled of `starting`;
    and what is left of that.
    """
    compiled = (e for e in run.events if e.function.place is not None)
    callers = {(x.file, x.function) for e in compiled for x in e.frames}
    by_function: dict[Any, list[tuple[Place, Any]]] = {}
    called: set[Any] = set()  # of these functions, those that a loop calls
    for spot in run.spots:
        alone = [x for x in spot.called if (x.file, x.function) not in callers]
        # An array that goes to the device in each step is no fault; small ones are.
        is_one_by_one = spot.is_transfer and any(
            (x.file, x.function) not in callers or is_in_comprehension(x)
            for x in spot.looping
        )
        if spot.is_operation or is_one_by_one:
            place = alone[-1] if alone else spot.place
            by_function.setdefault(_function_of(place), []).append((place, spot))
            called |= {_function_of(x) for x in alone[-1:]}
    told, findings, rest = [*repeated], list[Finding](), [*starting]
    at = {x.line[:2]: i for i, x in enumerate(told) if x.line}
    for function, spots in by_function.items():
        lines = {place for place, _ in spots}
        if function in called:
            own = [e for e in rest if function in map(_function_of, e.frames)]
        else:
            own = [e for e in rest if lines & {*e.frames}]
        n_lengths = _n_lengths(own)
        found = _warm(function[1], spots, n_lengths)
        if found.line and (i := at.get(found.line[:2])) is not None:
            if found.saves >= limit:
                told[i] = _with_warm(told[i], found)
            continue
        if found.saves < _OF_LIMIT * limit:
            continue  # what is compiled once, as of models that are made, is no loop's
        found = _with_compilations(found, own, n_lengths)
        if found.saves >= limit:
            findings.append(found)
            rest = [e for e in rest if e not in own]
    return told, findings, rest


def _with_warm(finding: Finding, warm: Finding) -> Finding:
    """With what operations of the same line take that are compiled already."""
    seconds = show_seconds(warm.seconds)
    return dataclasses.replace(
        finding,
        says=f"{finding.says} Operations there that are compiled already took about "
        f"{seconds}.",
        seconds=finding.seconds + warm.seconds,
        saves=finding.saves + warm.saves,
    )


def _with_compilations(finding: Finding, own: Sequence[Event], n: int) -> Finding:
    """With what it has compiled, which is less as one program for each of `n` lengths.

    That takes about as long as the operation that takes longest, and a quarter of what
    the others take.
    """
    if not own:
        return finding
    seconds = sum(e.seconds for e in own)
    longest = max(e.seconds for e in own)
    took = f"{show_seconds(seconds)} ({plural(len(own), 'compilation')})"
    lengths = ", and one program of them compiles for each length, too" * (n > 1)
    return dataclasses.replace(
        finding,
        says=f"{finding.says} To compile them took {took}{lengths}.",
        seconds=finding.seconds + seconds,
        saves=finding.saves + 0.75 * max(0.0, seconds - n * longest),
        count=len(own),
        functions=dict(collections.Counter(e.function.name for e in own)),
    )


def _n_lengths(events: Sequence[Event]) -> int:
    """Of how many lengths operations are, as far as they are compiled."""
    same = collections.Counter((line_of(e), e.function.name) for e in events)
    return max(same.values(), default=1)


# A lambda or a comprehension is a part of the function that has it.
_UNNAMED = re.compile(r"((^|\.)(<locals>|<lambda>|<\w+comp>|<genexpr>))+$")


def _function_of(place: Place) -> tuple[str, str]:
    """The file, and the named function."""
    return place.file, _UNNAMED.sub("", place.function)


def _warm(function: str, found: Sequence[tuple[Place, Any]], n_lengths: int) -> Finding:
    """`found`: lines of the function, and the operations that they come to."""
    lines: collections.Counter[Any] = collections.Counter()
    own: collections.Counter[Any] = collections.Counter()
    each: collections.Counter[Any] = collections.Counter()
    firsts: dict[Any, Any] = {}
    for line, spot in found:
        each[spot.place, spot.what] += spot.seconds
        place = show_place(spot.place)
        lines[place] += spot.seconds
        own[line] += spot.seconds
        firsts.setdefault(place, spot)
    costs = lines.most_common()
    shown = [f"{x} {show_seconds(n)} (`{firsts[x].what}`)" for x, n in costs]
    seconds = float(lines.total())
    name = function.rpartition(".")[2]
    named = f"`{name}`" if name[:1] not in ("", "<") else "the script"
    line = own.most_common(1)[0][0]
    kind = "warm"
    of_data = sum(n for (_, what), n in each.items() if _is_of_data(what))
    if of_data > _NEARLY_ALL * seconds:
        kind = "warm data"
    elif is_in_comprehension(line):
        kind = "warm comprehension"
    elif can_be_jitted(line):
        kind = "warm function"
    else:  # the line that costs most, whatever leads there
        line = firsts[costs[0][0]].place
    facts = {
        "function": named,
        "seconds": show_seconds(seconds),
        "lines": listed(shown, 4),
        "where": _ALONE if n_lengths > 1 else _OR_IN_ONE,
    }
    # About how many there are in a call, if all took as long. The call that is left
    # takes about half as long as one of them.
    n = seconds**2 / sum(x**2 for x in each.values())
    left = 0.5 / n if kind != "warm data" else 0.0
    fields = {"seconds": seconds, "saves": seconds * (1 - left), "line": line}
    return make_finding(OUTSIDE, facts, kind, **fields)


_OR_IN_ONE = " or in the one that the loop calls anyway"
_ALONE = (
    " (not in the one that the loop calls anyway, if that would get arrays of several "
    "lengths, and compile for each)"
)

# What puts arrays together, or takes parts of them, and computes nothing.
_OF_DATA = re.compile(
    r"(jnp|jax\.numpy|jax)\.(array|asarray|device_put|\w*stack|concatenate|pad)\(.*"
    r"|[\w.]+\[[^\[\]]*\]"
)


def _is_of_data(what: str) -> bool:
    return bool(_OF_DATA.fullmatch(what))
