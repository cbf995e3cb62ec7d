"""Outcomes of programs, and limits on the time of our calls."""

import dataclasses
import statistics
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a program.

    **Arguments:**

    - `us`: microseconds per call for each contender, the median over rounds.
    - `ratios`: `ours/jit`, `ours/flat`, `ours/eqx` and `flat/jit`, medians of the
        ratios of rounds.
    - `fault`: how ours differs from the others. If it does, nothing was timed.
    - `refused`: the error of Equinox or JAX, if the program is not valid for them.
    """

    us: dict[str, float] = dataclasses.field(default_factory=dict)
    ratios: dict[str, float] = dataclasses.field(default_factory=dict)
    fault: str = ""
    refused: str = ""


_RATIOS = ("ours/jit", "ours/flat", "ours/eqx", "flat/jit")


def outcome(times: dict[str, list[float]]) -> Outcome:
    """The outcome of a program that was timed.

    **Arguments:**

    - `times`: for each contender, the microseconds per call of each round.
    """

    def ratio(name: str) -> float:
        over, under = name.split("/")
        pairs = zip(times[over], times[under], strict=True)
        return statistics.median([a / b for a, b in pairs])

    us = {name: statistics.median(values) for name, values in times.items()}
    return Outcome(us, {name: ratio(name) for name in _RATIOS})


_WRONG = 1e6


@dataclasses.dataclass(frozen=True)
class Limit:
    """A limit on the time of our calls.

    **Arguments:**

    - `name`: its name in results.
    - `at_most`: its largest value.
    - `value`: the value of an outcome; `None` if the limit does not apply to it.
    """

    name: str
    at_most: float
    value: Callable[[Outcome], float | None]

    def excess(self, outcome: Outcome) -> float:
        """The ratio of the value to the limit; above 1, the limit is broken."""
        value = self.value(outcome)
        if value is None:
            return 0.0
        # A wrong result is worse than any slow call.
        return value / self.at_most if self.at_most else value * _WRONG


def _of_jit(outcome: Outcome) -> float | None:
    # Elsewhere pytrees add almost nothing to `jax.jit`, so there is nothing to gain.
    if outcome.ratios and outcome.ratios["flat/jit"] < 0.9:
        return outcome.ratios["ours/jit"]
    return None


def _of_flat(outcome: Outcome) -> float | None:
    if outcome.ratios and outcome.us["ours"] > 20:
        return outcome.ratios["ours/flat"]
    return None


def _of_eqx(outcome: Outcome) -> float | None:
    return outcome.ratios.get("ours/eqx")


def _faults(outcome: Outcome) -> float | None:
    return None if outcome.refused else float(bool(outcome.fault))


LIMITS = (
    Limit("ours/jit, where flat/jit is below 0.9", 1.0, _of_jit),
    Limit("ours/flat, calls over 20 us", 1.5, _of_flat),
    Limit("ours/eqx", 1.0, _of_eqx),
    Limit("another result, more traces, an error", 0, _faults),
)


def worst(outcome: Outcome) -> tuple[Limit, float]:
    """The limit that is broken most, or is nearest, and its ratio."""
    return max(((limit, limit.excess(outcome)) for limit in LIMITS), key=_second)


def _second(pair: tuple[Limit, float]) -> float:
    return pair[1]


def in_words(outcome: Outcome) -> str:
    """An outcome as one line of text."""
    if outcome.refused or outcome.fault:
        return outcome.refused or outcome.fault
    us = ", ".join(f"{name} {value:.3g}" for name, value in outcome.us.items())
    ratios = ", ".join(f"{name} {value:.2f}" for name, value in outcome.ratios.items())
    return f"us a call: {us}; {ratios}"


def to_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain values, with three significant digits."""

    def rounded(values: dict[str, float]) -> dict[str, float]:
        return {name: float(f"{value:.3g}") for name, value in values.items()}

    out = {"us": rounded(outcome.us), "ratios": rounded(outcome.ratios)}
    return out | ({"fault": outcome.fault} if outcome.fault else {})
