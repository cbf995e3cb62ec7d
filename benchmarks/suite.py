"""The asv suite: the cases of `cases.py`, over commits.

asv times the package of each commit on the cases of the checkout that it is started in.
Each benchmark runs in a process of its own, on JAX's default device.
"""

import statistics

from .case import FUNCTION
from .cases import CASES
from .timing import measure


_CALLS = [x.name for x in CASES.values() if not x.first]
_FIRST = [x.name for x in CASES.values() if x.first]
_RIVALS = [x for x in FUNCTION if x != "ours"]


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


def _median(case, rival, mode, rounds):
    done = [x[mode] for x in measure(case, rounds, ("ours", rival))]
    return statistics.median(x["ours"] / x[rival] for x in done)


class Ratios:
    """Ours over a rival, which take turns in one process. Below 1, ours is faster."""

    params = (_RIVALS, _CALLS)
    param_names = ("rival", "case")
    unit = "ours/rival"

    def setup(self, rival, name):
        self.case = _case(name, "ours", rival)

    def track_dispatch(self, rival, name):
        """Until the call returns."""
        return _median(self.case, rival, "dispatch", 15)

    def track_blocked(self, rival, name):
        """Until the result is ready."""
        return _median(self.case, rival, "blocked", 15)


class FirstRatios:
    """The same of a call that is traced, lowered, compiled and run."""

    params = (_RIVALS, _FIRST)
    param_names = ("rival", "case")
    unit = "ours/rival"
    timeout = 900

    def setup(self, rival, name):
        self.case = _case(name, "ours", rival)

    def track_total(self, rival, name):
        """All stages of it."""
        return _median(self.case, rival, "total", 3)
