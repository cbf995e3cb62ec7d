"""The search: times programs, confirms the bad ones, and shrinks them."""

import dataclasses
import re
from collections.abc import Callable, Iterator

from ._limits import Limit, LIMITS, Outcome, worst
from ._programs import features, Program
from ._random import random_program
from ._shrink import shrink


# Times a program, for a number of rounds.
Time = Callable[[Program, int], Outcome]

# Above this share of a limit, a program is timed again with more rounds.
_NEAR = 0.9
_LONGER = 4


@dataclasses.dataclass(frozen=True)
class Found:
    """A program and its outcome.

    **Arguments:**

    - `index`: its index for the seed.
    - `program`, `outcome`: the program, and its last outcome.
    - `smallest`: the smallest program that breaks the same limit, and its outcome.
        `None` if no limit is broken, or if it was not shrunk.
    - `like`: the index of a worse program that breaks the same limit, and whose
        smallest program has only features of this one. This one is then not shrunk.
    """

    index: int
    program: Program
    outcome: Outcome
    smallest: tuple[Program, Outcome] | None = None
    like: int | None = None

    @property
    def limit(self) -> Limit:
        """The limit that is broken most, or is nearest."""
        return worst(self.outcome)[0]

    @property
    def excess(self) -> float:
        """The ratio of the value to this limit; above 1, the limit is broken."""
        return worst(self.outcome)[1]


@dataclasses.dataclass(frozen=True)
class Settings:
    """How long the search takes.

    **Arguments:**

    - `rounds`: rounds of each program; four times as many near a limit.
    - `shrunk`: how many programs to shrink.
    - `attempts`: how many smaller programs to time for each of these.
    """

    rounds: int = 5
    shrunk: int = 5
    attempts: int = 60


def confirmed(time: Time, program: Program, rounds: int) -> Outcome:
    """Time a program, with more rounds if it is near a limit or beyond."""
    found = time(program, rounds)
    if found.ratios and worst(found)[1] > _NEAR:
        return time(program, rounds * _LONGER)
    return found


def breaks(time: Time, program: Program, limit: Limit, rounds: int) -> Outcome | None:
    """The outcome of a program if it breaks this limit twice; otherwise `None`."""
    if limit.excess(time(program, rounds)) <= 1:
        return None
    again = time(program, rounds * _LONGER)
    return again if limit.excess(again) > 1 else None


def smallest(time: Time, found: Found, settings: Settings) -> Found:
    """The same, with the smallest program that breaks the same limit."""
    outcomes = {found.program: found.outcome}

    def shows(program: Program) -> bool:
        outcome = breaks(time, program, found.limit, settings.rounds)
        if outcome is None or _kind(outcome.fault) != _kind(found.outcome.fault):
            return False
        outcomes[program] = outcome
        return True

    program = shrink(found.program, shows, settings.attempts)
    return dataclasses.replace(found, smallest=(program, outcomes[program]))


def _kind(fault: str) -> str:
    """The text of a fault without its numbers."""
    return re.sub(r"\d+", "", fault)


def search(time: Time, seed: int, programs: int, settings: Settings) -> Iterator[Found]:
    """Time random programs.

    **Arguments:**

    - `time`: times one program.
    - `seed`, `programs`: the seed, and how many programs.
    - `settings`: how long the search takes.

    **Returns:** an iterator over the programs and their outcomes.
    """
    for index in range(programs):
        program = random_program(seed, index)
        yield Found(index, program, confirmed(time, program, settings.rounds))


def shrink_worst(
    time: Time,
    found: list[Found],
    settings: Settings,
    note: Callable[[str], None] = lambda words: None,
) -> None:
    """Sort the programs, worst first, and shrink the worst that break a limit.

    **Arguments:**

    - `time`, `settings`: as for `search`.
    - `found`: the programs, which are replaced in place as soon as they are shrunk, or
        found to be like one that was.
    - `note`: called with a line of text before each is shrunk.
    """
    found.sort(key=lambda one: -one.excess)
    done: list[Found] = []
    for i, one in enumerate(found):
        if one.excess <= 1:
            return
        like = [other.index for other in done if _alike(other, one)]
        if like:
            found[i] = dataclasses.replace(one, like=like[0])
        elif len(done) < settings.shrunk:
            note(f"shrinking program {one.index}")
            found[i] = smallest(time, one, settings)
            done.append(found[i])


def _alike(worse: Found, one: Found) -> bool:
    if worse.smallest is None or worse.limit is not one.limit:
        return False
    if _kind(worse.outcome.fault) != _kind(one.outcome.fault):
        return False
    return features(worse.smallest[0]) <= features(one.program)


def values(found: list[Found], limit: Limit) -> list[tuple[float, Found]]:
    """The values of a limit, with the programs that have one."""
    pairs = [(limit.value(one.outcome), one) for one in found]
    return [(value, one) for value, one in pairs if value is not None]


def broken(found: list[Found]) -> list[Found]:
    """The programs that break any limit."""
    return [one for one in found if any(x.excess(one.outcome) > 1 for x in LIMITS)]
