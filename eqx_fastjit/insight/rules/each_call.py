"""In each call: rules of what costs in every iteration of a run."""

import collections
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

from eqx_fastjit.insight._words import listed, show_bytes, show_place, show_seconds
from eqx_fastjit.insight.record._activity import (
    Activity,
    OPERATIONS,
    TRANSFERS,
)
from eqx_fastjit.insight.record._calls import Timed
from eqx_fastjit.insight.record._events import Event
from eqx_fastjit.insight.record._given import Given
from eqx_fastjit.insight.record._overhead import overhead_of
from eqx_fastjit.insight.record._run import Run

from ._rules import Case, Part, Row, Rule
from ._steady import CallsAt, Loop, loops_of
from ._waiting import BLOCKING, replacing, rows_of_waits, WAITS
from .outside_of_jit import is_again, program_key, seconds_as_one


EAGER = Rule("eager-calls", "{into}", "{statement}")
SHORT = Rule(
    "short-calls",
    "{edit}",
    "{function} takes {each}, {launch} of it to launch what it computes",
)
EQUINOX = Rule(
    "equinox-jit",
    "{edit}",
    "equinox.filter_jit, which did not run here, would take {each} longer",
)
DONATE = Rule("donate", "{mode}", "{arguments} {bytes}, which each call replaces")
TRANSFER = Rule("transfers", "{edit}", "{statement}")

RULES = (EAGER, SHORT, EQUINOX, DONATE, TRANSFER, WAITS, BLOCKING)

# Seconds, of some 25 samples.
_LEAST_SECONDS = 0.25
# The share of what a row saves below which a statement is not told.
_LITTLE = 0.01
# What to do with an array of NumPy's that is the same in each iteration, or another
# one; and about what is left then of what its conversion takes.
_ONCE = "before the loop, if nothing changes it"
_AS_IT_IS = "np.array of its dtype instead, if only jitted functions are given it"
_LEFT = 0.25
# What to do with calls of which none needs what another one returns; and with others.
_AT_ONCE = "jax.vmap (eqx.filter_vmap of modules) over all, or as many as fit, at once"
_SCAN = "jax.lax.scan over the steps, in one call"
# Calls of which one is left where many are made in one.
_STEPS = 100
# The most seconds that a call is assumed to have of overhead: where even that saves too
# little it is not measured, which takes time.
_MOST_OVERHEAD = 1e-2
# Bytes of arrays from which on it matters that they are not donated; calls, too.
_LEAST_BYTES, _LEAST_CALLS = 1 << 22, 10


def rows(case: Case) -> Iterator[Row]:
    """What each iteration of a loop, or each call of a function, costs too much."""
    found: list[Row] = []
    in_a_scan: set[object] = set()
    compiling = sum(case.left.values())
    for loop in loops_of(case.run):
        found += [*_eager(loop, case), *_transfers(loop, case)]
        for call in loop.calls:
            for row in _short(loop, call, case):
                in_a_scan.add(call.timed.function.key())
                found.append(row)

    yield from found
    yield from _equinox(case, in_a_scan)
    yield from _donate(case.run)
    # What Python does no more, it cannot do while the device works. (It does not wait
    # while it compiles.)
    compiling -= sum(case.left.values())
    yield from rows_of_waits(case.run, sum(x.saves for x in found) - compiling)


def _least(case: Case) -> float:
    """The seconds below which nothing is known of samples."""
    return max(case.limit, _LEAST_SECONDS)


def _cost(seconds: float, count: int, run: Run) -> str:
    """How much of the run that is, and of an iteration."""
    text = f"{show_seconds(seconds)} of {show_seconds(run.seconds)}"
    if not count:
        return text
    each = show_seconds(seconds / count)
    return f"{text} in {count:,} iterations: {each} each"


# --- operations outside of jit ---


def _eager(loop: Loop, case: Case) -> Iterator[Row]:
    """Its operations outside of jit. Those that take long to compute take as long in
    jit, unless they copy an array to change a part of it.
    """
    parts: list[Part] = []
    compiled, count, seconds = loop.compiled(case), loop.count, 0.0
    n_operations = len({program_key(e) for events in compiled.values() for e in events})
    moved = {x.statement: _saved_of_transfer(x) for x in loop.of(TRANSFERS)}

    # What a library's own jitted calls are among, no edit can jit.
    of_libraries = {x.statement for x in loop.calls if not x.timed.is_by_user}
    for x in loop.of(OPERATIONS):
        if x.statement in of_libraries:
            continue
        events = compiled.get(x.statement.place[:2], [])
        if is_again(events, case.run) and _mostly_compiles(x, events, count):
            continue
        moving = moved.get(x.statement, 0.0)
        seconds += x.seconds + moving
        saves = x.seconds - x.computing + moving
        # One call is left in place of all operations, unless there is one already.
        main = loop.main_beside(x.statement.branch)
        if main is None and not x.may_be_at_once:
            saves -= saves / max(n_operations, 2)
        edit = _into(main, x)
        if 2 * x.copying > x.seconds:
            edit = f'{edit} with donate="all", or NumPy'
        if moving and x.statement.moves_the_same:
            edit = f"make the array that it moves {_ONCE}; {edit}"
        facts, line = {"statement": _source(x), "into": edit}, x.statement.place
        parts.append(EAGER.part(facts, saves=saves, count=count, line=line))

    # Half of it may be what it compiles.
    for row in _row(loop, parts, seconds, count, case, _least(case) / 2):
        yield from _with_compilations(row, compiled, case)


def _mostly_compiles(activity: Activity, events: Sequence[Event], count: int) -> bool:
    """Whether a statement compiles in one of ten iterations, or, if their number is not
    known, for longer than it runs.

    It has a row of the rule `eager`: in jit, the whole would compile as often.
    """
    if count:
        return 10 * len(events) > count
    return sum(e.seconds for e in events) > activity.seconds


def _saved_of_transfer(activity: Activity) -> float:
    """About what it saves to move arrays once, or to pass those of NumPy as they are.

    What a jitted function is given takes as long to be copied.
    """
    if activity.statement.moves_the_same:
        return activity.seconds
    return (1 - _LEFT) * (activity.seconds - activity.computing)


def _into(main: CallsAt | None, activity: Activity) -> str:
    """Where operations of a statement are moved: beside a call, if there is one."""
    statement = activity.statement
    if statement.read_by_items:
        return f"iterate over np.asarray({statement.read_by_items})"

    # A loop in jit is unrolled.
    by_vmap = ", by jax.vmap if all are alike"
    vmapped = by_vmap if statement.has_loop else ""
    # What a `for` iterates over is made once, before the loop.
    is_head = statement.place.line == statement.loop and statement.text[:4] == "for "
    if main is not None and not is_head:
        if main.statement == statement and main.is_direct:
            return f"within `{main.name}`, what else it computes"
        return f"in one jitted function with `{main.name}`{vmapped}"
    if statement.branch or statement.text.startswith("yield "):
        return f"in a jitted function of its own{vmapped}"
    if activity.may_be_at_once:
        return f"in a jitted function of all of the loop{by_vmap}"
    return f"in a jitted function of the body, or a jax.lax.scan of it{vmapped}"


def _source(activity: Activity) -> str:
    """A statement, and the line that has most, in what it calls."""
    text, most = activity.statement.text, activity.most
    return text if activity.is_direct else f"{text}, most at {show_place(most)}"


def _with_compilations(
    row: Row, compiled: Mapping[object, list[Event]], case: Case
) -> Iterator[Row]:
    """What its statements compile is not compiled by itself, either."""
    parts: list[Part] = []
    spared: list[Event] = []
    for part in row.parts:
        if part.line and (events := compiled.get(part.line[:2])):
            together = seconds_as_one(events, case.run)
            more = max(0.0, sum(case.left[e] for e in events) - together)
            saves = part.saves + more
            part = dataclasses.replace(part, saves=saves, gain=saves)
            spared += events
        parts.append(part)

    parts.sort(key=lambda x: -x.saves)
    seconds = sum(e.seconds for e in spared)
    compiling = f", and {show_seconds(seconds)} to compile" if spared else ""
    row = dataclasses.replace(
        row,
        parts=tuple(parts),
        line=parts[0].line,
        cost=row.cost + compiling,
        seconds=row.seconds + seconds,
        saves=sum(x.saves for x in parts),
        compilations=len(spared),
        programs=len({*map(program_key, spared)}),
    )
    if row.saves >= _least(case):
        case.spare(row, spared)
        yield row


def _transfers(loop: Loop, case: Case) -> Iterator[Row]:
    """Arrays of NumPy, or lists of these, that each iteration makes into JAX's."""
    parts: list[Part] = []
    told = {x.statement for x in loop.of(OPERATIONS)}
    for x in loop.of(TRANSFERS):
        is_placed = "device_put" in x.statement.text  # with a sharding, say
        if x.statement in told or (is_placed and not x.statement.moves_the_same):
            continue
        edit = _ONCE if x.statement.moves_the_same else _AS_IT_IS
        facts = {"statement": _source(x), "edit": edit}
        line, count = x.statement.place, loop.count
        saves = _saved_of_transfer(x)
        parts.append(TRANSFER.part(facts, saves=saves, count=count, line=line))
    seconds = loop.seconds(TRANSFERS)
    yield from _row(loop, parts, seconds, loop.count, case, _least(case))


def _row(
    loop: Loop,
    parts: list[Part],
    seconds: float,
    count: int,
    case: Case,
    least: float,
) -> Iterator[Row]:
    """The row of a loop, what saves most first, if that is enough."""
    all_saves = sum(x.saves for x in parts)
    parts = [x for x in parts if x.saves > _LITTLE * all_saves]
    parts.sort(key=lambda x: -x.saves)
    saves = sum(x.saves for x in parts)
    if not parts or saves < least:
        return
    yield Row(
        loop.name,
        tuple(parts),
        parts[0].line,
        cost=_cost(seconds, count, case.run),
        seconds=seconds,
        saves=saves,
        about=True,
    )


# --- calls ---


def _short(loop: Loop, call: CallsAt, case: Case) -> Iterator[Row]:
    """Short calls, if one call may be many.

    Those of which none needs what another one returns then compute in less time, too.
    """
    timed, count = call.timed, call.calls
    seconds = count * timed.ready
    if not timed.is_by_user:
        return
    if call.may_be_at_once:
        edit, least_share = _AT_ONCE, 0.05
    elif loop.may_be_scanned(call, case.run):
        edit, least_share = _SCAN, 0.5
    else:
        return

    overhead = overhead_of(timed) if seconds > _least(case) else None
    if overhead is None or overhead.launch < least_share * timed.ready:
        return
    launch = min(overhead.launch, timed.ready)
    facts = {
        "function": call.name,
        "each": show_seconds(timed.ready),
        "launch": show_seconds(launch),
        "edit": edit,
    }
    saves = (1 - 1 / _STEPS) * count * launch
    line = call.statement.place
    part = SHORT.part(facts, saves=saves, count=count, line=line)
    yield from _row(loop, [part], seconds, count, case, _least(case))


def _equinox(case: Case, without: Collection[object]) -> Iterator[Row]:
    """What Equinox's own `filter_jit` would take longer, which the program calls.

    One edit is for all functions, but for those that a scan would call.
    """
    functions: dict[object, list[Timed]] = collections.defaultdict(list)
    for timed in case.run.timed:
        is_told = timed.function.key() in without
        if timed.is_of_equinox and timed.calls and not is_told:
            functions[timed.function.key()].append(timed)

    found: list[tuple[Timed, int, float]] = []
    for several in functions.values():
        main = max(several, key=lambda x: x.calls)
        calls = sum(x.calls for x in several)
        if calls * _MOST_OVERHEAD >= case.limit and (overhead := overhead_of(main)):
            found.append((main, calls, calls * overhead.equinox))

    found.sort(key=lambda x: -x[2])
    saves, n = sum(x for *_, x in found), sum(n for _, n, _ in found)
    if found and saves >= case.limit:
        edit = replacing((x for x, *_ in found), "eqx_fastjit.install()")
        facts = {"each": show_seconds(saves / n), "edit": edit}
        part = EQUINOX.part(facts, count=n, saves=saves)
        names = listed((x.function.name for x, *_ in found), 3)
        line, cost = found[0][0].line, f"{n:,} calls"
        yield Row(names, (part,), line, cost=cost, saves=saves, about=True)


# --- donation ---


def _donate(run: Run) -> Iterator[Row]:
    """Arguments whose arrays nobody has any more after any call of a function."""
    functions: dict[object, list[Timed]] = collections.defaultdict(list)
    for timed in run.timed:
        functions[timed.function.key()].append(timed)
    for several in functions.values():
        main = max(several, key=lambda x: x.calls * x.given.donated_bytes)
        given = main.given
        arguments = [x.name for x in given.donatable]
        n_bytes = given.donated_bytes
        # Also in those that are called only once, or mostly compile.
        kept = {x.name for other in several for x in other.given.kept_arguments}
        is_kept = not kept.isdisjoint(arguments)
        if n_bytes < _LEAST_BYTES or main.calls < _LEAST_CALLS or is_kept:
            continue

        facts = {
            "arguments": listed(arguments),
            "bytes": show_bytes(n_bytes),
            "mode": _mode([x.name for x in given.arguments if x.name in kept], given),
        }
        part = DONATE.part(facts, count=main.calls)
        yield Row(main.function.name, (part,), main.line, bytes=n_bytes)


def _mode(kept: list[str], given: Given) -> str:
    """Equinox's option, with what is kept as the first argument."""
    if not kept:
        return 'donate="all"'
    is_first = kept == [given.arguments[0].name]
    first = "" if is_first else f", with {listed(kept)} in the first argument"
    return f'donate="all-except-first"{first}'
