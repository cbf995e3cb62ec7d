"""Why functions were compiled again, and when that is a finding.

Each threshold has its reason beside it. Behind all of them is one rule: a program that
is meant to compile for a few shapes, modes or dtypes has no finding.
"""

import collections
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, TYPE_CHECKING

from ._buckets import padding_advice, show_shapes
from ._intent import (
    beginning,
    BEGUN,
    carry,
    DATA,
    ELSEWHERE,
    FED_BACK,
    intent,
    MEANT,
    plain_intent,
    UNKNOWN,
)
from ._plain import Compile, Miss
from ._report import at, Finding, grouped
from ._sites import is_library, Line
from ._watch import Seen


if TYPE_CHECKING:
    from eqx_fastjit._record import Trace
    from eqx_fastjit.insight._explain import Compared

# Recompilations by one line, for the same kind of reason, that make a finding.
_AT_LEAST = {
    # A training and an evaluation batch, each with a ragged last one, may all go
    # through one helper: four shapes, three of them traced after the first.
    "shape-churn": 4,
    # As for numbers, in `_NUMBERS`; other statics (names, modes, functions) have more
    # values by design.
    "static-churn": 5,
    # With and without an optional argument, for training and for evaluation: three.
    "structure-churn": 4,
    # A step that is built for each of a few configurations is intended.
    "fresh-function": 4,
    # float16, bfloat16 and float32 are compared on purpose. But see `_nobody_means`.
    "dtype-churn": 3,
    # Two programs that differ in nothing else are never intended.
    "weak-type": 1,
    # On the host, then on one device, then on all.
    "sharding-churn": 3,
    # Once for each of two precisions, and back.
    "config-churn": 3,
}
# Other leaves that a finding names, beside the one that changed most often.
_OTHERS = 3
# Models of several widths or depths, each of which is trained at the same line.
_BEGINNINGS = 10
# A number that is static has two or three values by design, such as a depth.
_NUMBERS = 3
_NUMBER_TYPES = ("(int)", "(float)", "(complex)")
# Seconds. Less is not worth a word about a batch that has another dtype once.
_ONCE = 0.5


# The share of the run that is high or medium, or the seconds if the program runs for
# long. In a short program, up to one second is low.
_HIGH = 0.25, 30.0
_MEDIUM = 0.05, 3.0
_LOW = 1.0


class Cause(NamedTuple):
    """A retrace or recompilation of a function."""

    function: str
    # Equal for all functions that the line created.
    key: Any
    place: Line | None
    site: Line | None
    kind: str
    leaf: str
    old: str
    new: str
    seconds: float
    advice: str
    # Of each array whose shape changed, its path and both shapes.
    shapes: tuple[tuple[str, str, str], ...] = ()
    # Of a dtype, a shape or a structure: why it is another one, of `_intent`.
    intent: str = ""
    # Whether a shape or the structure was new as well, so that it had to be compiled.
    needed: bool = False


def severity(seconds: float, total: float) -> str:
    """The severity of a finding that cost `seconds` of the `total` of a run."""
    if seconds <= _LOW:
        return "low"
    for name, (share, limit) in (("high", _HIGH), ("medium", _MEDIUM)):
        if seconds >= limit or (total > 0 and seconds / total >= share):
            return name
    return "low"


# --- from traces to causes -----------------------------------------------------------


def our_causes(seen: list[Seen]) -> Iterator[Cause]:
    """Explain each trace of ours, and yield the causes of the retraces."""
    from eqx_fastjit.insight._explain import compare_trace

    by_number = {s.trace.number: s for s in seen}
    earlier: dict[Any, list[Trace]] = collections.defaultdict(list)
    for s in seen:
        if (trace := s.trace).failed:
            continue
        key = trace.key()
        # Comparing with the last few is enough. There may be very many in total.
        s.explanation = found = compare_trace(trace, earlier[key][-32:])
        earlier[key].append(trace)
        if found is not None and not trace.inlined:
            yield _cause(s, by_number[found.old.number], found)


def function_place(trace: "Trace") -> Line | None:
    """Where the function was defined, which is unknown for a `Partial`."""
    return None if trace.wrapped() else line_of(trace.function.place)


def function_name(trace: "Trace") -> str:
    """The name of the function, or of what a `Partial` wraps."""
    inside = trace.wrapped()
    name = trace.function.qualname
    return f"{name} of {inside[0].partition(' (')[0]}" if inside else name


def line_of(place: Any) -> Line | None:
    """A place of the record's as a line."""
    return None if place is None else Line(*place)


def _cause(s: Seen, old: Seen, found: "Compared") -> Cause:
    from eqx_fastjit.insight._advice import advice

    kind, main, differing = found.kind, found.main, found.differences
    is_reshaped = kind in ("shape-churn", "structure-churn")
    explain = {"dtype-churn": intent, "static-churn": carry}.get(kind)
    explain = beginning if is_reshaped else explain
    why = "" if explain is None else explain(old, s, differing)
    place, site = function_place(s.trace), s.site or line_of(s.trace.site)
    return Cause(
        function_name(s.trace),
        s.trace.key(),
        place,
        site,
        kind,
        *((main.path, main.old, main.new) if main else ("", "", "")),
        s.trace.seconds,
        advice(
            kind,
            main,
            site=site and site[:2],
            function=s.trace.function.name,
            defined=place and place[:2],
            fed_back=why == FED_BACK,
            earlier=old.site and old.site[:2],
            differences=differing,
        ),
        tuple((d.path, d.old, d.new) for d in differing if d.what == "shape"),
        why,
        not is_reshaped and any(d.what in ("shape", "structure") for d in differing),
    )


def plain_causes(compiles: list[Compile], ours: list[Seen]) -> Iterator[Cause]:
    """Why functions under plain `jax.jit` were compiled once more."""
    # The last compilation of each.
    earlier: dict[Any, Compile] = {}
    # When the functions of each line were traced.
    traced: dict[Any, list[float]] = collections.defaultdict(list)
    for s in ours:
        if (place := s.trace.function.place) is not None:
            traced[place[:2]].append(s.trace.started)
    for c in compiles:
        if (miss := c.miss) is None:
            continue
        key = miss.name, miss.place
        old = earlier.get(key)
        since = old.started if old else -math.inf
        # Under `jax.grad` outside of any jitted function, JAX compiles the backward
        # pass of ours as a function of its own, with the same name and place: it is new
        # because ours was traced anew.
        starts = traced[miss.place[:2]] if miss.place else ()
        is_derivative = any(since < t < c.started for t in starts)
        if miss.kind not in ("first-call", "other") and not is_derivative:
            is_dtype = miss.kind == "dtype-churn"
            why = plain_intent(old and old.stack, c.stack) if is_dtype else ""
            yield _plain_cause(c, miss, why)
        earlier[key] = c


def _plain_cause(c: Compile, miss: Miss, why: str) -> Cause:
    from eqx_fastjit.insight._advice import plain_advice

    place = miss.place and miss.place[:2]
    fix = plain_advice(miss, site=c.site and c.site[:2], defined=place)
    change = (miss.leaf, miss.old, miss.new)
    return Cause(
        miss.name,
        (miss.name, miss.place),
        miss.place,
        c.site,
        miss.kind,
        *change,
        c.seconds,
        fix,
        (change,) if miss.kind == "shape-churn" else (),
        why,
    )


# --- from causes to findings ---------------------------------------------------------


def churn(causes: list[Cause], total: float) -> Iterator[Finding]:
    """What was compiled again too often, by line and cause."""
    unintended = [cause for cause in causes if cause.intent != MEANT]
    # By line, because calls with different signatures at different lines are intended.
    groups = grouped(unintended, lambda c: (c.key, c.site, c.kind))
    for group in groups.values():
        first = group[0]
        # If all were needed, it takes two edits to save any.
        saved = [c for c in group if not c.needed] or group
        seconds = sum(c.seconds for c in saved)
        if len(group) < _threshold(group) or _is_the_librarys(first):
            continue
        leaf = collections.Counter(c.leaf for c in group).most_common(1)[0][0]
        made = _is_made_anew(first) and not _is_of_a_library(first)
        line = first.place if made else first.site or first.place
        yield Finding(
            kind=first.kind,
            severity=severity(seconds, total),
            function=first.function,
            **at(line),
            leaf=leaf,
            seconds=seconds,
            count=len(group),
            message=_what_changed(group, leaf) + _needed_anyway(group),
            fix=_churn_fix(group, leaf),
        )


def _is_made_anew(cause: Cause) -> bool:
    """Whether the jitted function itself is a new one, and no function that it gets."""
    return cause.kind == "fresh-function" and not cause.old


def _is_the_librarys(cause: Cause) -> bool:
    """Whether it is a library's own state that becomes weakly typed after a step.

    Where the program steps through a library's solver by hand, there is next to nothing
    that it could do about that.
    """
    is_weak = cause.kind == "weak-type" and cause.new in ("True", "weak")
    return is_weak and _is_of_a_library(cause)


def _is_of_a_library(cause: Cause) -> bool:
    """Whether the function is, or nobody knows where it was defined."""
    return cause.place is None or is_library(cause.place.file)


def _shapes(group: list[Cause]) -> dict[str, list[str]]:
    """Those of each array whose shape changed, in order."""
    shapes: dict[str, list[str]] = {}
    for cause in group:
        for path, old, new in cause.shapes:
            shapes.setdefault(path, [old]).append(new)
    return shapes


def _churn_fix(group: list[Cause], leaf: str) -> str:
    from eqx_fastjit.insight._advice import and_for

    if group[0].kind == "shape-churn" and (text := padding_advice(_shapes(group))):
        return text
    advice = [c.advice for c in group if c.leaf == leaf]
    if group[0].kind != "static-churn":
        return advice[0]
    # A flag that changes now and then does not need the same edit as a number.
    text = min(filter(advice[0].startswith, advice), key=len)
    # What follows an edit says why, whatever leaf it is of.
    why = text.partition(". ")[2].partition(" The same goes")[0]
    alike = dict.fromkeys(c.leaf for c in group if why and why in c.advice)
    if text.endswith(why):
        text += and_for([x for x in alike if x != leaf])
    padding = padding_advice(_shapes(group)) if all(c.needed for c in group) else ""
    return f"{text} {padding}" if padding else text


def _threshold(group: list[Cause]) -> int | float:
    kind = group[0].kind
    if kind == "static-churn":
        if any(c.intent == FED_BACK for c in group):
            return 1  # as where it is weakly typed at first
        # Whatever else has changed at that line.
        if sum(c.new.endswith(_NUMBER_TYPES) for c in group) >= _NUMBERS:
            return _NUMBERS
    if kind == "dtype-churn" and any(map(_nobody_means, group)):
        return 1
    if {c.intent for c in group} - {UNKNOWN} == {BEGUN}:
        return _BEGINNINGS
    return _AT_LEAST.get(kind, float("inf"))


def _nobody_means(cause: Cause) -> bool:
    """Whether a second dtype is a mistake, rather than another precision to compare."""
    from eqx_fastjit.insight._edits import becomes_float

    if cause.intent in (FED_BACK, ELSEWHERE):
        return cause.intent == FED_BACK
    # Integers that become floats are a carry with the wrong initial value.
    is_late = cause.intent == DATA and cause.seconds >= _ONCE
    return is_late or becomes_float(cause.old, cause.new)


def _needed_anyway(group: list[Cause]) -> str:
    needed = sum(c.needed for c in group)
    if needed == 0:
        return ""
    if needed == len(group):
        return "; each time with a new shape or structure as well"
    whose = "its" if needed == 1 else "their"
    return (
        f"; {needed} of these had a new shape or structure as well, so {whose} time is "
        "not counted"
    )


def _what_changed(group: list[Cause], leaf: str) -> str:
    first = group[0]
    times = "once more" if len(group) == 1 else f"{len(group)} more times"
    text = f"{first.function} was compiled {times} by the call at {first.site or '?'}"
    if _is_made_anew(first):
        return f"{text}, for a new function each time"
    steps = [c for c in group if c.leaf == leaf and (c.old or c.new)]
    if not steps:
        return text
    if first.kind == "shape-churn":
        # Also where another leaf comes first.
        values = _shapes(group).get(leaf, _values(steps))
        return f"{text}: `{leaf}` had the shapes {show_shapes(values)}"
    parts = [f"{text}: {_changed(leaf, steps)}"]
    # What changed in place of it now and then.
    named = [c for c in group if c.leaf not in ("", leaf) and (c.old or c.new)]
    others = grouped(named, lambda c: c.leaf)
    for other, causes in list(others.items())[:_OTHERS]:
        times = "once" if len(causes) == 1 else f"{len(causes)} times"
        parts.append(f"{times}, {_changed(other, causes)}")
    return "; ".join(parts)


def _values(steps: list[Cause]) -> list[str]:
    """What a leaf was, in order."""
    values = [steps[0].old, *[c.new for c in steps]]
    if steps[0].kind == "weak-type":
        values = [{"True": "weak", "False": "strong"}.get(v, v) for v in values]
    return values


def _changed(leaf: str, steps: list[Cause]) -> str:
    kind, values = steps[0].kind, _values(steps)
    shown = list(dict.fromkeys(values))
    is_function = kind == "fresh-function"
    if len(shown) == 1 or (is_function and len(shown) < len(values)):
        what = "function" if is_function else "object"
        return f"`{leaf}` was another {what} each time, {', '.join(shown[:5])}"
    changes = " -> ".join(shown[:5]) + " and so on" * (len(shown) > 5)
    what = "dtype " * (kind == "dtype-churn")
    return f"`{leaf}` changed, {what}{changes}"
