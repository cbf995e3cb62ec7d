"""Ratios of ours over a rival, which take turns in one process.

In `calls.py` each contender has its own process, and the machine may be busier for one
than for another. Here noise affects both sides of a ratio.
"""

import statistics

from benchmarks._suite import DEVICES, load_bench, make_case, ZOO


ROUNDS = 15


class _Ratios:
    """Medians of ratios over rounds. Below 1, ours is faster."""

    unit = "ours/rival"

    def setup(self, rival, case, device):
        self.calls = make_case(case, ("ours", rival), device)

    def track_dispatch(self, rival, case, device):
        """Until the call returns."""
        return self._ratio(rival, "dispatch")

    def track_blocked(self, rival, case, device):
        """Until the result is ready."""
        return self._ratio(rival, "blocked")

    def _ratio(self, rival, mode):
        timings = _run(load_bench().measure(self.calls, ROUNDS))
        pairs = zip(
            getattr(timings["ours"], mode), getattr(timings[rival], mode), strict=True
        )
        return statistics.median([ours / theirs for ours, theirs in pairs])


class Ratios(_Ratios):
    """Calls that a program makes over and over."""

    params = (
        ("jax.jit", "eqx.filter_jit", "flat"),
        (
            "identity",
            "mlp_32",
            "mlp_8_100_layers",
            "adam_19_leaves",
            "adam_103_leaves",
            "method",
            "error_if",
            "static_arguments",
            "wrap_anew",
        ),
        DEVICES,
    )
    param_names = ("rival", "case", "device")


class ZooRatios(_Ratios):
    """Whole programs as people write them."""

    params = (("jax.jit", "eqx.filter_jit", "flat"), ZOO, DEVICES)
    param_names = ("rival", "case", "device")


def _run(steps):
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value
