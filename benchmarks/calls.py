"""Seconds a call, each contender in processes of its own.

What asv times is `Ready.count` calls, by a clock that goes as much slower.
"""

from benchmarks._suite import DEVICES, FUNCTION, JITS, ready


class _Calls:
    def _setup(self, case, contender, device):
        self.ready = ready(case, contender, device)
        self.ready.block()  # what the last sample has left
        self.timer = self.ready.timer

    def time_dispatch(self, *params):
        """Until the call returns."""
        self.ready.dispatch()

    def time_blocked(self, *params):
        """Until the result is there."""
        self.ready.blocked()


class Calls(_Calls):
    """The calls that a program makes again and again."""

    params = (
        (
            "identity",
            "mlp_32",
            "adam_19_leaves",
            "adam_19_leaves_donated",
            "adam_103_leaves",
            "adam_103_leaves_donated",
            "recurrent",
            "convolutional",
            "transformer",
            "pipeline",
            "method",
            "callable_model",
            "error_if",
            "static_arguments",
            "statics_1",
            "statics_1000",
            "numpy_inputs",
            "typed_key",
            "keywords",
            "wrap_anew",
            "sharded",
        ),
        FUNCTION,
        DEVICES,
    )
    param_names = ("case", "contender", "device")

    def setup(self, case, contender, device):
        self._setup(case, contender, device)


class Widths(_Calls):
    """MLPs of 3 linear layers: the fixed cost fades as the work grows."""

    params = (
        (8, 16, 32, 64, 128, 256, 512, 1024),
        (*FUNCTION, "nnx.jit", "nnx.cached_partial"),
        DEVICES,
    )
    param_names = ("width", "contender", "device")

    def setup(self, width, contender, device):
        self._setup(f"mlp_{width}", contender, device)


class Layers(_Calls):
    """MLPs of width 8: the cost of each node of a model."""

    params = ((1, 3, 16, 100), FUNCTION, DEVICES)
    param_names = ("layers", "contender", "device")

    def setup(self, layers, contender, device):
        case = "mlp_8" if layers == 3 else f"mlp_8_{layers}_layers"
        self._setup(case, contender, device)


class Batches(_Calls):
    """A batch by `vmap`: the fixed cost is shared by its samples."""

    params = ((1, 4, 16, 64, 256, 1024, 4096), FUNCTION, DEVICES)
    param_names = ("batch", "contender", "device")

    def setup(self, batch, contender, device):
        self._setup(f"batch_{batch}", contender, device)


class Strategies:
    """What to jit, and what a loop costs outside of it."""

    params = (
        (
            "strategy_whole",
            "strategy_part",
            "strategy_both",
            "strategy_none",
            "lambda_in_loop",
            "named_in_loop",
            "selu",
            "walk_loops",
            "walk_scan",
        ),
        (*JITS, "eager"),
        DEVICES,
    )
    param_names = ("case", "contender", "device")

    def setup(self, case, contender, device):
        self.ready = ready(case, contender, device)
        self.timer = self.ready.timer

    def time_blocked(self, *params):
        """Until the result is there."""
        self.ready.blocked()
