"""Facts of the steady state that the rules of each call ask for: a run by its loops."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax

from eqx_fastjit._facts import Place
from eqx_fastjit.insight.record._activity import (
    Activity,
    in_loop,
    PYTHON,
    TRANSFERS,
)
from eqx_fastjit.insight.record._calls import Timed
from eqx_fastjit.insight.record._events import Event
from eqx_fastjit.insight.record._run import Run
from eqx_fastjit.insight.record._statements import (
    in_innermost_loop,
    Statement,
    statement_at,
    statement_of,
)
from eqx_fastjit.insight.record._why import is_operation, short_name

from ._rules import Case


class CallsAt(NamedTuple):
    """Calls of a function by one statement."""

    timed: Timed
    statement: Statement
    calls: int
    # Whether the statement itself calls it.
    is_direct: bool

    @property
    def name(self) -> str:
        """The function."""
        return self.timed.function.name

    @property
    def may_be_at_once(self) -> bool:
        """Whether all calls could be one, as none needs what another one returns."""
        is_always = self.is_direct and not self.statement.branch
        return is_always and self.statement.may_be_at_once


@dataclasses.dataclass
class Loop:
    """A loop of the user's, innermost: what its statements do."""

    # Its first line.
    place: Place
    activities: list[Activity]
    calls: list[CallsAt]

    @property
    def name(self) -> str:
        """The function that has it."""
        return short_name(self.place.function)

    def main_beside(self, branch: int = 0) -> CallsAt | None:
        """The jitted calls that take longest, of those in a branch of it; 0 if none.

        Those that a library makes are not: how often is its own affair.
        """
        own = (x for x in self.calls if x.timed.is_by_user)
        beside = [x for x in own if x.statement.branch == branch]
        return max(beside, key=lambda x: x.calls * x.timed.ready, default=None)

    @property
    def count(self) -> int:
        """How often it ran; 0 if that is not known."""
        main = self.main_beside()
        if main is None or main.statement.has_loop:
            return 0
        # A function may have several specializations.
        own = main.name, main.statement.place
        calls = (x for x in self.calls if (x.name, x.statement.place) == own)
        return sum(x.calls for x in calls)

    def seconds(self, kind: str) -> float:
        """The seconds of one kind."""
        return sum(x.seconds for x in self.of(kind))

    def of(self, kind: str) -> list[Activity]:
        """What is of one kind."""
        return [x for x in self.activities if x.kind == kind]

    def may_be_scanned(self, call: CallsAt, run: Run) -> bool:
        """Whether one call of a function may make many steps.

        It may not if what is read in between decides what follows; if a step is given
        data of NumPy's; if Python does more than to call; or if it has convolutions,
        which a CPU computes slowly within a loop.
        """
        timed = call.timed
        reads = sum(x.reads for x in run.waits if x.decides)
        decides = call.statement.branch > 0 or 2 * reads > call.calls
        is_given = timed.given.numpy_changes or self.seconds(TRANSFERS) > 0
        is_busy = self.seconds(PYTHON) > call.calls * timed.ready

        key = timed.function.key()
        programs = (e.program for e in run.events if e.function.key() == key)
        convolves = any(x.convolves for x in programs if x)
        is_slow = convolves and jax.default_backend() == "cpu"
        return not (decides or is_given or is_busy or is_slow)

    def compiled(self, case: Case) -> dict[object, list[Event]]:
        """The operations that it has compiled, by file and line of its statements."""
        found: dict[object, list[Event]] = collections.defaultdict(list)
        for event in filter(is_operation, case.left):
            if case.run.look(event).operation.is_making:
                continue
            innermost = in_innermost_loop(map(statement_at, event.frames))
            if innermost is not None and innermost.around == self.place:
                found[innermost.place[:2]].append(event)
        return found


def loops_of(run: Run) -> list[Loop]:
    """The loops of a run, by what their statements did and by the calls in them."""
    activities: dict[Place, list[Activity]] = collections.defaultdict(list)
    for activity in run.activities:
        if activity.loop is not None:
            activities[activity.loop].append(activity)

    calls: dict[Place, list[CallsAt]] = collections.defaultdict(list)
    for timed in (x for x in run.timed if x.calls):
        for loop, call in _calls_in_loops(timed):
            calls[loop].append(call)
    return [
        Loop(place, activities[place], calls[place])
        for place in dict.fromkeys([*activities, *calls])
    ]


def _calls_in_loops(timed: Timed) -> Sequence[tuple[Place, CallsAt]]:
    """The loops around the calls of a function, by those that were looked at."""
    counts = collections.Counter[tuple[Place, Statement, bool]]()
    for stack, n in timed.sites.items():
        statement, loop = in_loop(stack) if stack else (None, None)
        if statement is not None and loop is not None:
            counts[loop, statement, statement == statement_of(stack[0])] += n
    share = timed.calls / (timed.sites.total() or 1)
    return [
        (loop, CallsAt(timed, statement, max(1, round(n * share)), is_direct))
        for (loop, statement, is_direct), n in counts.items()
    ]
