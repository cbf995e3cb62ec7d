"""Seconds per call. Each contender has its own processes.

asv times `Ready.count` calls, on a clock that is slower by this factor.
"""

from benchmarks._suite import DEVICES, FUNCTION, JITS, ready, ZOO, ZOO_CONTENDERS


# Samples are short, so that no call blocks on the device. Therefore there are many:
# between 10 and 100, for at most 2 seconds.
repeat = (10, 100, 2.0)


class _Calls:
    def _setup(self, contender, case, device):
        self.ready = ready(contender, case, device)
        self.ready.block()  # finish the calls of the last sample
        self.timer = self.ready.timer

    def time_dispatch(self, *params):
        """Until the call returns."""
        self.ready.dispatch()

    def time_blocked(self, *params):
        """Until the result is ready."""
        self.ready.blocked()


class Calls(_Calls):
    """Calls that a program makes over and over."""

    params = (
        FUNCTION,
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
        DEVICES,
    )
    param_names = ("contender", "case", "device")

    def setup(self, contender, case, device):
        self._setup(contender, case, device)


class Widths(_Calls):
    """MLPs of 3 linear layers: the overhead fades as the work grows."""

    params = (
        (*FUNCTION, "nnx.jit", "nnx.cached_partial"),
        (8, 16, 32, 64, 128, 256, 512, 1024),
        DEVICES,
    )
    param_names = ("contender", "width", "device")

    def setup(self, contender, width, device):
        self._setup(contender, f"mlp_{width}", device)


class Layers(_Calls):
    """MLPs of width 8: the overhead of each node of a model."""

    params = (FUNCTION, (1, 3, 16, 100), DEVICES)
    param_names = ("contender", "layers", "device")

    def setup(self, contender, layers, device):
        case = "mlp_8" if layers == 3 else f"mlp_8_{layers}_layers"
        self._setup(contender, case, device)


class Batches(_Calls):
    """A batch by `vmap`: its samples share the overhead."""

    params = (FUNCTION, (1, 4, 16, 64, 256, 1024, 4096), DEVICES)
    param_names = ("contender", "batch", "device")

    def setup(self, contender, batch, device):
        self._setup(contender, f"batch_{batch}", device)


class Zoo(_Calls):
    """Whole programs as people write them, with additional requirements."""

    params = (ZOO_CONTENDERS, ZOO, DEVICES)
    param_names = ("contender", "case", "device")

    def setup(self, contender, case, device):
        self._setup(contender, case, device)


class Strategies:
    """What to jit, and the overhead of a loop outside of jit."""

    params = (
        (*JITS, "eager"),
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
        DEVICES,
    )
    param_names = ("contender", "case", "device")

    def setup(self, contender, case, device):
        self.ready = ready(contender, case, device)
        self.timer = self.ready.timer

    def time_blocked(self, *params):
        """Until the result is ready."""
        self.ready.blocked()
