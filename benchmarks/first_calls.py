"""Milliseconds of a first call, which JAX traces, lowers and compiles."""

import statistics

from benchmarks._suite import DEVICES, FUNCTION, JITS, load_bench, make_case


_MOST_CALLS = 5


class FirstCall:
    """The first call of a gradient step, by stage."""

    params = (("trace", "lower", "compile", "run", "total"), FUNCTION, DEVICES)
    param_names = ("stage", "contender", "device")
    unit = "ms"

    def setup(self, stage, contender, device):
        self.call = make_case("first_call", (contender,), device)[contender]

    def track_first_call(self, stage, contender, device):
        return _median("first_call", self.call, stage)


class Loops:
    """The first call of a function of many steps, with and without `scan`."""

    params = (("loop", "scan"), (10, 100, 1000), JITS, DEVICES)
    param_names = ("kind", "steps", "contender", "device")
    unit = "ms"
    timeout = 900

    def setup(self, kind, steps, contender, device):
        self.case = f"{kind}_{steps}"
        self.call = make_case(self.case, (contender,), device)[contender]

    def track_first_call(self, *params):
        return _median(self.case, self.call, "total")


def _median(case, call, stage):
    """Of some calls: each is a first call, of a new function."""
    count = min(_MOST_CALLS, load_bench().case_info(case).max_rounds)
    return statistics.median([call().times[stage] for _ in range(count)])
