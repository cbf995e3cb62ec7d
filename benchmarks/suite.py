"""The asv suite: the cases of `cases.py`, over commits.

asv times the package of each commit on the cases of the checkout that it is started in.
Each benchmark runs in a process of its own, on JAX's default device.
"""

import statistics

from .case import FUNCTION
from .cases import CASES
from .timing import measure, ratios


_CALLS = [x.name for x in CASES.values() if x.modes == ("dispatch", "blocked")]
_RIVALS = [x for x in FUNCTION if x != "ours"]


def _case(name, *contenders):
    """A case, or asv's signal to skip it if it lacks one of the contenders."""
    import jax

    case = CASES[name]
    if not {*contenders} <= {*case.contenders}:
        raise NotImplementedError(f"{name} has not all of {contenders}")
    jax.config.update("jax_enable_compilation_cache", False)
    return case


def _median(case, rival, mode, rounds):
    times = measure(case, rounds, ("ours", rival))
    return statistics.median(ratios(times[mode], rival))


class Ratios:
    """eqx_fastjit over a rival, in turn in one process. Below 1, it is faster."""

    params = (_RIVALS, _CALLS)
    param_names = ("rival", "case")
    unit = "eqx_fastjit / rival (below 1 is faster)"

    def setup(self, rival, name):
        self.case = _case(name, "ours", rival)

    def track_dispatch(self, rival, name):
        """Until the call returns."""
        return _median(self.case, rival, "dispatch", 15)

    def track_blocked(self, rival, name):
        """Until the result is ready."""
        return _median(self.case, rival, "blocked", 15)
