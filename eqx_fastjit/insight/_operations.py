"""Operations outside of jit, each of which is a program of its own.

Most are compiled once, as a program starts, and are no fault. What a line compiles
again and again is one: its operands have other shapes each time, or a function that it
is given is made anew.
"""

import collections
import dataclasses
import itertools
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from eqx_fastjit._blocking import jaxprs_in, opened
from eqx_fastjit._facts import is_users, is_written_by_user, Place

from ._causes import Finding, make_finding
from ._describe import show_array
from ._equations import CONTROL_FLOW, JAX
from ._events import Event
from ._file import Run
from ._private import jaxpr_in_jit
from ._source import can_be_jitted, is_in_comprehension
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
# In these functions models and states are made, of whichever library.
_MAKERS = ("__init__", "init", "init_fn")
# Equations that are looked at, and characters that are kept of an option.
_MAX_EQUATIONS, _MAX_OPTION = 50, 200
# The share of the operations of a function from which it only puts arrays together.
_NEARLY_ALL = 0.9
# Operands of an operation that NumPy should have: a program of them compiles for long.
_MANY = 64
# NumPy's scalars show their type.
_SCALAR = re.compile(r"np\.\w+\((-?[\w.]+)\)")


class Operation(NamedTuple):
    """An operation that is being compiled."""

    operands: str = ""
    results: str = ""
    # What is static: `limit_indices=(3,)`.
    options: tuple[str, ...] = ()
    n_operands: int = 0
    # Whether it is `scan`, `cond` or the like; and the user's function that it runs.
    is_loop: bool = False
    body: str = ""
    # Whether it is there to make a model, or an optimiser's state.
    is_making: bool = False
    # Whether the user's line calls JAX itself, and no other library.
    is_direct: bool = True
    # Of an operation of a model, the user's line that calls it, and which call it is.
    called_at: Place | None = None
    call: int = 0

    @property
    def has_many_operands(self) -> bool:
        """Whether the user's line puts many arrays together."""
        return self.n_operands >= _MANY and self.is_direct

    def differs_from(self, others: "Sequence[Operation]") -> str:
        """The first kind of what is not the same in all of them."""
        if self == Operation():
            return "unseen"
        for kind in ("operands", "results", "options"):
            # Of a few operations that take turns, each is compiled once.
            if len({getattr(x, kind) for x in others}) > len(others) // 2:
                return kind
        return "created again" if self.is_loop else "again"


def is_maker(code: CodeType) -> bool:
    """Whether code makes a model, or an optimiser's state."""
    return code.co_name in _MAKERS and not code.co_filename.startswith(JAX)


def operation() -> Operation:
    """The operation that is being compiled in this thread."""
    stack = [*traceback.walk_stack(sys._getframe(1))]
    is_making = any(is_maker(frame.f_code) for frame, _ in stack)
    jaxpr = opened(jaxpr_in_jit())
    if jaxpr is None:
        return Operation(is_making=is_making)
    options: list[str] = []
    is_loop, bodies = False, [""]
    for equation in jaxpr.eqns[:_MAX_EQUATIONS]:
        if inner := jaxprs_in(equation):
            is_loop = is_loop or equation.primitive.name in CONTROL_FLOW
            bodies += map(_users_function, inner)
        else:
            shown = (f"{k}={v}" for k, v in equation.params.items())
            options += [_SCALAR.sub(r"\1", x)[:_MAX_OPTION] for x in shown]
    operands, results = map(_show_avals, (jaxpr.invars, jaxpr.outvars))
    body = max(bodies, key=len)
    called_at, call = (None, 0) if is_making else _model_call(stack)
    return Operation(
        operands,
        results,
        tuple(options),
        n_operands=len(jaxpr.invars),
        is_loop=is_loop,
        body=body,
        is_making=is_making,
        is_direct=_is_direct(stack),
        called_at=called_at,
        call=call,
    )


def _is_direct(stack: Iterable[tuple[FrameType, int]]) -> bool:
    codes = (frame.f_code for frame, _ in stack)
    inside = [*itertools.takewhile(lambda x: not is_written_by_user(x), codes)]
    return inside[-1].co_filename.startswith(JAX)  # the innermost is this library's


def _model_call(stack: Iterable[tuple[FrameType, int]]) -> tuple[Place | None, int]:
    """The call of the outermost model of a stack: the user's line, and its number."""
    found, model = None, None
    for frame, line in stack:
        code = frame.f_code
        if _is_model(frame):
            found, model = None, frame
        elif model and found is None and is_written_by_user(code):
            found = Place(code.co_filename, line, code.co_qualname)
    return found, _number_of_call(model) if model and found else 0


class _Mark:
    """The trace function of a frame, which nothing calls unless the user debugs.

    So frames are told apart: another one may have the `id` of one that is gone, and
    there are no weak references to frames.
    """

    def __init__(self) -> None:
        self.number = next(_numbers)

    def __call__(self, *_: Any) -> None: ...


_numbers = itertools.count(1)


def _number_of_call(frame: FrameType) -> int:
    if frame.f_trace is None:
        frame.f_trace = _Mark()
    return getattr(frame.f_trace, "number", 0)


def _is_model(frame: FrameType) -> bool:
    """Whether a Module of Equinox, or of another library, is being called."""
    name, _, method = frame.f_code.co_qualname.rpartition(".")
    cls = frame.f_globals.get(name) if method == "__call__" else None
    return isinstance(cls, type) and any(x.__name__ == "Module" for x in cls.__mro__)


def _show_avals(variables: Iterable[Any]) -> str:
    shown: list[str] = []
    for aval in (v.aval for v in variables):
        weak = "weak " * getattr(aval, "weak_type", False)
        shown.append(weak + show_array(aval.shape, str(aval.dtype)))
    out: list[str] = []
    for text, same in itertools.groupby(shown):
        n = len([*same])
        # Of a list that is stacked, there are hundreds.
        out += [text] * n if n < 3 else [f"{n} x {text}"]
    return ", ".join(out)


def _users_function(jaxpr: Any) -> str:
    """The name of the user's function behind a jaxpr, or nothing."""
    info = getattr(opened(jaxpr), "debug_info", None)
    name, _, place = str(getattr(info, "func_src_info", "")).partition(" at ")
    return name if place and is_users(place) else ""


# --- in a report ----------------------------------------------------------------------


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
        found = run.looks.get(event.number)
        return Operation() if found is None else found.operation

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
    """The operations that a line compiles once for each of some lengths.

    **Returns:** the compilations of each, two or more.
    """
    if not sizes:
        return []
    groups: dict[Any, list[Event]] = {}
    lengths: dict[Any, set[str]] = collections.defaultdict(set)
    for event in events:
        seen, key = run.looks.get(event.number), (line_of(event), event.function.name)
        if seen is not None and not seen.operation.is_making and key[0] is not None:
            shapes = f"{seen.operation.operands} {seen.operation.results}"
            if own := sizes & {*_LENGTH.findall(shapes)}:
                groups.setdefault(key, []).append(event)
                lengths[key] |= own
    return [x for key, x in groups.items() if 1 < len(x) <= len(lengths[key])]


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


def warm_findings(
    run: Run, repeated: Sequence[Finding], starting: Sequence[Event], limit: float
) -> tuple[list[Finding], list[Finding], list[Event]]:
    """What loops spend on operations that are compiled already, if worth the `limit`.

    By the outermost function in such a loop that calls nothing jitted, so that all of
    it can be one call.

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
    by_line = {x.line: x for x in repeated}
    findings: list[Finding] = []
    rest = [*starting]
    for function, spots in by_function.items():
        found = _warm(function[1], spots)
        if found.saves < limit:
            continue
        if same := by_line.get(found.line):
            by_line[found.line] = _with_warm(same, found)
            continue
        lines = {place for place, _ in spots}
        if function in called:
            own = [e for e in rest if function in map(_function_of, e.frames)]
        else:
            own = [e for e in rest if lines & {*e.frames}]
        rest = [e for e in rest if e not in own]
        findings.append(_with_compilations(found, own))
    return [*by_line.values()], findings, rest


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


def _with_compilations(finding: Finding, own: Sequence[Event]) -> Finding:
    """With what it has compiled, which is less as one program for each length.

    That takes about as long as the operation that takes longest, and a quarter of what
    the others take.
    """
    if not own:
        return finding
    same = collections.Counter((line_of(e), e.function.name) for e in own)
    n, seconds = max(same.values()), _seconds(own)
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


# A lambda or a comprehension is a part of the function that has it.
_UNNAMED = re.compile(r"((^|\.)(<locals>|<lambda>|<\w+comp>|<genexpr>))+$")


def _function_of(place: Place) -> tuple[str, str]:
    """The file, and the named function."""
    return place.file, _UNNAMED.sub("", place.function)


def _warm(function: str, found: Sequence[tuple[Place, Any]]) -> Finding:
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
    }
    # About how many there are in a call, if all took as long. The call that is left
    # takes about half as long as one of them.
    n = seconds**2 / sum(x**2 for x in each.values())
    left = 0.5 / n if kind != "warm data" else 0.0
    fields = {"seconds": seconds, "saves": seconds * (1 - left), "line": line}
    return make_finding(OUTSIDE, facts, kind, **fields)


# What puts arrays together, or takes parts of them, and computes nothing.
_OF_DATA = re.compile(
    r"(jnp|jax\.numpy|jax)\.(array|asarray|device_put|\w*stack|concatenate|pad)\(.*"
    r"|[\w.]+\[[^\[\]]*\]"
)


def _is_of_data(what: str) -> bool:
    return bool(_OF_DATA.fullmatch(what))


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
