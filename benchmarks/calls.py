"""Seconds a call, of each contender in a process of its own."""

from benchmarks._suite import CONTENDERS, DEVICES, ready


CASES = ("identity", "mlp_32")


class Calls:
    """One call, by case."""

    params = (CASES, tuple(CONTENDERS), DEVICES)
    param_names = ("case", "contender", "device")

    def setup(self, *params):
        self.ready = ready(*params)
        self.ready.block()  # what the last sample left
        self.timer = self.ready.timer

    def time_dispatch(self, *params):
        """Until the call returns."""
        self.ready.dispatch()

    def time_blocked(self, *params):
        """Until the result is there."""
        self.ready.blocked()
