"""Milliseconds of a first call, which is traced, lowered and compiled."""

import statistics

from benchmarks._suite import (
    DEVICES,
    FUNCTION,
    JITS,
    load_bench,
    make_case,
    prove_equal,
)


_MOST_CALLS = 5


class FirstCall:
    """The first call of a gradient step, by stage."""

    params = (FUNCTION, ("total", "trace", "lower", "compile", "run"), DEVICES)
    param_names = ("contender", "stage", "device")
    unit = "ms"

    def setup(self, contender, stage, device):
        self.call = make_case("first_call", (contender,), device)[contender]
        prove_equal("first_call", self.call, contender)

    def track_first_call(self, contender, stage, device):
        return _median("first_call", self.call, stage)


class Loops:
    """The first call of a function of many steps, with and without `scan`."""

    params = (JITS, ("loop", "scan"), (10, 100, 1000), DEVICES)
    param_names = ("contender", "kind", "steps", "device")
    unit = "ms"
    timeout = 900

    def setup(self, contender, kind, steps, device):
        self.case = f"{kind}_{steps}"
        self.call = make_case(self.case, (contender,), device)[contender]
        prove_equal(self.case, self.call, contender)

    def track_first_call(self, *params):
        return _median(self.case, self.call, "total")


def _median(case, call, stage):
    """The median of several first calls, each of a new function."""
    count = min(_MOST_CALLS, load_bench().case_info(case).max_rounds)
    return statistics.median([call().times[stage] for _ in range(count)])
