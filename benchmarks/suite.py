"""The asv suite: the cases of `cases.py`, over commits.

asv times the package of each commit on the cases of the checkout that it is started in.
Each benchmark runs in a process of its own, on JAX's default device.
"""

import statistics

import jax

from .case import FUNCTION
from .cases import CASES
from .timing import measure, ratios


_CALLS = [x.name for x in CASES.values() if x.modes == ("dispatch", "blocked")]
_RIVALS = [x for x in FUNCTION if x != "ours"]


def _ratio(name, rival, mode, rounds=15):
    times = measure(CASES[name], rounds, ("ours", rival))
    return statistics.median(ratios(times[mode], rival))


class Ratios:
    """eqx_fastjit over a rival, in turn in one process. Below 1, it is faster."""

    params = (_RIVALS, _CALLS)
    param_names = ("rival", "case")
    unit = "eqx_fastjit / rival (below 1 is faster)"

    def setup(self, rival, name):
        """By this exception, asv skips what is no contender."""
        if not {"ours", rival} <= {*CASES[name].contenders}:
            raise NotImplementedError(f"{name} has no {rival}")
        jax.config.update("jax_enable_compilation_cache", False)

    def track_dispatch(self, rival, name):
        """Until the call returns."""
        return _ratio(name, rival, "dispatch")

    def track_blocked(self, rival, name):
        """Until the result is ready."""
        return _ratio(name, rival, "blocked")
