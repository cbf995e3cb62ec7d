"""The asv suite: the cases of `cases.py`, over commits.

asv times the package of each commit on the cases of the checkout that it is started in.
Each benchmark runs in a process of its own, on JAX's default device.
"""

import statistics

from .case import CASES, FUNCTION, JITS
from .cases import GROUPS
from .timing import check_equal, measure, Sampler, stages


_CALLS = [
    x.name for g in GROUPS for x in CASES.values() if x.group == g and not x.first
]
_FIRST = [x.name for x in CASES.values() if x.first]
_RIVALS = [x for x in FUNCTION if x != "ours"]
_ROUNDS = 15


def _case(name, *contenders):
    """A case, or asv's signal to skip it if it lacks one of the contenders."""
    import jax

    case = CASES[name]
    if not {*contenders} <= {*case.contenders}:
        raise NotImplementedError(f"{name} has not all of {contenders}")
    jax.config.update("jax_enable_compilation_cache", False)
    if case.cpu_devices > 1:
        jax.config.update("jax_num_cpu_devices", case.cpu_devices)
    return case


class Ratios:
    """Ours over a rival, which take turns in one process. Below 1, ours is faster."""

    params = (_RIVALS, _CALLS)
    param_names = ("rival", "case")
    unit = "ours/rival"

    def setup(self, rival, name):
        self.case = _case(name, "ours", rival)

    def track_dispatch(self, rival, name):
        """Until the call returns."""
        return self._median(rival, "dispatch")

    def track_blocked(self, rival, name):
        """Until the result is ready."""
        return self._median(rival, "blocked")

    def _median(self, rival, mode):
        rounds = [x[mode] for x in measure(self.case, _ROUNDS, ("ours", rival))]
        return statistics.median(x["ours"] / x[rival] for x in rounds)


class Calls:
    """Microseconds a call of one contender."""

    params = (list(FUNCTION), _CALLS)
    param_names = ("contender", "case")
    unit = "us"

    def setup(self, contender, name):
        case = _case(name, contender)
        rival = next(x for x in case.contenders if x != contender)
        calls = case.build((contender, rival))
        check_equal(calls)
        self.sampler = Sampler(calls[contender], case.steps)
        self.sampler.warm()

    def track_dispatch(self, contender, name):
        """Until the call returns."""
        return statistics.median(
            self.sampler.round()["dispatch"] for _ in range(_ROUNDS)
        )

    def track_blocked(self, contender, name):
        """Until the result is ready."""
        return statistics.median(
            self.sampler.round()["blocked"] for _ in range(_ROUNDS)
        )


class FirstCalls:
    """Milliseconds of a call that is traced, lowered, compiled and run."""

    params = (list(JITS), _FIRST)
    param_names = ("contender", "case")
    unit = "ms"
    timeout = 900

    def setup(self, contender, name):
        self.call = _case(name, contender).build((contender,))[contender]

    def track_total(self, contender, name):
        """All stages of it."""
        return statistics.median(stages(self.call)["total"] for _ in range(3))
