"""Operations outside of jit: each is a program of its own.

A few are compiled once, as a program starts. What a line compiles again and again is
waste: its operands have other shapes each time, or a function that it is given is made
anew. So is what a line compiles, or a function that calls nothing jitted, if that is
much: it could be one program.
"""

import collections
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from eqx_fastjit._facts import Place
from eqx_fastjit.insight._words import listed, shortened
from eqx_fastjit.insight.record._events import Event
from eqx_fastjit.insight.record._run import Run
from eqx_fastjit.insight.record._statements import place_of, statement_at
from eqx_fastjit.insight.record._why import costliest, is_operation, line_of, short_name

from ._rules import Case, Part, Row, Rule
from .same_operations import NEEDED


# In how many calls of a line an operation is compiled before that is no accident:
# models may have layers of a few widths.
_LEAST = 5
# From how many operations on a line, or a function that jits nothing, has a row; and
# from how many operands of one operation NumPy is faster than to compile it.
_MANY, _OPERANDS = 20, 100
# From how many equations a program tells what each takes to compile; and seconds that
# one takes where a run has no such program.
_LARGE, _USUAL = 20, 2e-3


def program_key(event: Event) -> tuple[str, str]:
    """Equal for compilations of one program; each has its own if that is not known."""
    program = event.program
    return event.function.name, program.same if program else f"{event.number}"


EAGER = Rule(
    "eager",
    "{shape}filter_jit around {computed}",
    "{operations} outside of jit{values}",
)
AGAIN = Rule(
    "eager-function",
    "make it once, under filter_jit",
    "{operations} outside of jit, of a function made again",
)
OPERANDS = Rule(
    "many-operands",
    "NumPy, np.asarray of each, and jnp.asarray of what comes of it",
    "{differs}: an operation of {n} arrays",
)

RULES = (EAGER, AGAIN, OPERANDS)


class _Compiled(NamedTuple):
    """Compilations of one operation, at one line of what a function calls."""

    # That of the function's call, or of the operation where no function is named.
    line: Place
    events: list[Event]
    # Whether several calls of the line compiled it: for data in other shapes, or for a
    # function that it is given, which is made again.
    is_again: bool


def rows(case: Case) -> Iterator[Row]:
    """What functions of the user's compile outside of jit, then what has to be."""
    run, operations = case.run, _left(case)
    wide = [e for e in operations if run.look(e).operation.n_operands >= _OPERANDS]
    others = [e for e in operations if e not in wide]
    for row, spared in [*_by_function(wide, OPERANDS, run), *_eager(others, run)]:
        case.spare(row, spared)
        yield row
    yield from (row for row, _ in _by_function(_left(case), NEEDED, run))


def _left(case: Case) -> list[Event]:
    """The operations that no row spares so far."""
    return [e for e in case.left if is_operation(e)]


def _eager(operations: Iterable[Event], run: Run) -> Iterator[tuple[Row, list[Event]]]:
    """The rows of functions that call operations again and again, or many."""
    # The lines on the way to what is jitted, also by a library. Nothing around them is
    # to be jitted: that would be compiled for each shape of the rest.
    compiling = (e for e in (*run.before, *run.events) if not is_operation(e))
    jitting = {x for e in compiling for x in e.frames}
    sites = (site for timed in run.timed for site in timed.sites)
    jitting |= {place_of(position) for site in sites for position in site}
    not_own = {_function_at(x) for x in jitting}

    functions: dict[Any, dict[Any, list[Event]]] = {}
    for e in operations:
        # Models and states are made once, mostly of a few shapes.
        if not e.frames or run.look(e).operation.is_making:
            continue
        inside = itertools.takewhile(lambda x: _function_at(x) not in not_own, e.frames)
        named = [i for i, x in enumerate(inside) if not x.function.endswith(">")]

        # The outermost function that jits nothing, and the line that calls it.
        own = e.frames[named[-1]] if named else e.frames[0]
        callers = e.frames[named[-1] + 1 :] if named else ()
        line = callers[0] if callers else own
        lines = functions.setdefault((*_function_at(own), bool(named)), {})
        key = line, e.frames[0], run.look(e).operation.instruction, e.function.name
        lines.setdefault(key, []).append(e)

    for (_, function, is_own), lines in functions.items():
        found: list[_Compiled] = []
        for (line, *_), compiled in lines.items():
            found.append(_Compiled(line, compiled, is_again(compiled, run)))

        # A line that leads to what is jitted cannot be jitted as a whole; a function
        # that jits nothing can.
        counts = collections.Counter(x.line for x in found for _ in x.events)
        many = {x for x, n in counts.items() if n >= _MANY} - jitting
        if is_own and counts.total() >= _MANY:
            many = {*counts}
        chosen = [x for x in found if x.line in many or x.is_again]
        if chosen:
            row, spared = _eager_row(function, chosen, many, run)
            if row.saves > 0:
                yield row, spared


def _function_at(place: Place) -> tuple[str, str]:
    """The function of a line, and its file."""
    return place.file, place.function


def is_again(events: Iterable[Event], run: Run) -> bool:
    """Whether a line has compiled an operation in several of its calls."""
    calls: dict[Any, set[Any]] = collections.defaultdict(set)
    for e in events:
        found = run.look(e).operation
        calls[e.frames[0], found.instruction, e.function.name].add(found.call)
    # `None` of operations on each leaf of a tree, which one call compiles.
    return any(len(x - {None}) >= _LEAST for x in calls.values())


def seconds_as_one(events: Collection[Event], run: Run) -> float:
    """About what one program takes in place of these operations.

    By what an equation takes in this run, those in the bodies of loops included.
    """
    large = [e for e in run.events if run.look(e).equations >= _LARGE and not e.cached]
    each = _USUAL
    if large:
        equations = sum(run.look(e).equations for e in large)
        each = sum(e.seconds for e in large) / equations

    longest = max(e.seconds for e in events)
    return max(longest, each * sum(run.look(e).equations for e in events))


def _by_function(
    operations: Iterable[Event], rule: Rule, run: Run
) -> Iterator[tuple[Row, list[Event]]]:
    """A row for each function that calls some: a price, or what the edit saves."""
    by_function: dict[Any, list[Event]] = collections.defaultdict(list)
    for e in operations:
        by_function[_function_at(e.frames[0]) if e.frames else None].append(e)

    for key, events in by_function.items():
        function = short_name(key[1]) if key else "the program"
        costs = collections.defaultdict[str, float](float)
        for e in events:
            source = statement_at(e.frames[0]).text if e.frames else ""
            costs[source or e.function.name] += e.seconds
        facts = {
            "differs": listed(sorted(costs, key=lambda x: -costs[x]), 3),
            "n": max(run.look(e).operation.n_operands for e in events),
        }

        seconds = sum(costs.values())
        saves = seconds if rule.edit else 0.0
        row = _row(
            f"operations outside of jit in {function}",
            rule.part(facts, saves=saves, count=len(events)),
            costliest((line_of(e), e.seconds) for e in events),
            events,
            saves=saves,
            wanted=seconds - saves,
            about=saves > 0,
        )
        yield row, events


def _eager_row(
    function: str,
    found: list[_Compiled],
    many: Collection[Place],
    run: Run,
) -> tuple[Row, list[Event]]:
    """The row of a function. Of each operation, the first is needed.

    `many`: the lines whose operations could be one program instead.
    """
    found.sort(key=lambda x: (not x.is_again, -sum(e.seconds for e in x.events[1:])))
    main = found[0].events
    again = [e for x in found if x.is_again for e in x.events[1:]]

    # A `scan`, say, that is compiled twice for one program: its function is another.
    # (Of a few functions that take turns, each is compiled once.)
    different = {*map(program_key, main)}
    is_made_again = found[0].is_again and len(different) <= len(main) // 2
    is_same = is_made_again and any(run.look(e).operation.is_loop for e in main)
    values = tuple(dict.fromkeys(run.look(e).operation.operands for e in main))
    if len(values) <= len(main) // 2:  # of `jnp.arange`, say
        values = tuple(dict.fromkeys(run.look(e).operation.results for e in main))

    every = [e for x in found for e in x.events]
    saves = saves_again = sum(e.seconds for e in again)
    together = {e for x in found if x.line in many for e in x.events}
    rest = together - {*again}
    more = sum(e.seconds for e in rest) - seconds_as_one(rest, run) if rest else 0.0
    if more <= 0:
        rest.clear()
    saves += max(0.0, more)

    is_whole = bool(again) and _is_one_loop(main, run)
    is_other = bool(again) and not (is_same or is_whole) and len(values) > 1
    is_in_loop = statement_at(main[0].frames[0]).loop > 0
    computed = "the body of the loop" if is_in_loop else "what it computes"
    shown = [shortened(x, 40) for x in values[:2]]
    if len(values) > 2:
        shown.append("...")
    facts = {
        "operations": listed((x.events[0].function.name for x in found), 2),
        "values": f": {', '.join(shown)}" if is_other else "",
        "shape": "one shape, and " if is_other else "",
        "computed": "all of the loop" if is_whole else computed,
    }

    rule = AGAIN if is_same else EAGER
    part = rule.part(
        facts,
        saves=saves,
        # The innermost line of the user's, which may be far within the function.
        line=costliest((e.frames[0], e.seconds) for e in every),
        values=values,
        count=len(again),
        other_data=is_other,
    )
    row = _row(
        short_name(function),
        part,
        costliest((x.line, e.seconds) for x in found for e in x.events),
        every,
        saves=saves,
        other_data=saves_again if is_other else 0.0,
        about=bool(rest),
    )
    return row, [*again, *rest]


def _is_one_loop(events: Sequence[Event], run: Run) -> bool:
    """Whether these are of a loop that could be one program, as it stays the same.

    That is a comprehension over the leaves of a model, say; or a loop of which all was
    compiled in one call of a function that is itself called in a loop.
    """
    statement, *around = map(statement_at, events[0].frames)
    if not statement.loop:
        return statement.has_loop
    calls = {run.look(e).operation.function for e in events}
    return len(calls) == 1 and any(x.loop for x in around)


def _row(
    function: str,
    part: Part,
    line: Place | None,
    events: Collection[Event],
    **fields: Any,
) -> Row:
    """A row of operations, with what is counted of them."""
    return Row(
        function,
        (part,),
        line,
        seconds=sum(e.seconds for e in events),
        compilations=len(events),
        programs=len({*map(program_key, events)}),
        **fields,
    )
