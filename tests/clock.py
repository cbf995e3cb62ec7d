"""A clock that advances only when it is told to, for tests of durations."""

from eqx_fastjit import _record


class Clock:
    """Replaces the module `time`.

    **Arguments:**

    - `tick`: seconds by which each reading advances it.
    """

    def __init__(self, tick=0.0):
        self.now = 1000.0
        self.tick = tick

    def perf_counter(self):
        self.now += self.tick
        return self.now

    time = monotonic = perf_counter

    def sleep(self, seconds):
        self.now += seconds


TRACED = "/jax/core/compile/jaxpr_trace_duration"
LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
COMPILED = "/jax/core/compile/backend_compile_duration"


def record_call(
    clock, history, seconds, *, arguments=(), site=None, inside=None, error=None
):
    """Record a call through all stages, as the engine records a traced call.

    **Arguments:**

    - `clock`: replaces the module `time` in `_record`.
    - `history`: the history of the function that is called.
    - `seconds`: durations of the four stages in order, without functions called inside.
    - `arguments`: pairs of names and values.
    - `site`: the place of the call; by default, that of the caller.
    - `inside`: called while the function is traced.
    - `error`: raised by the function at the end of its trace.

    **Returns:** the `Trace`.
    """
    trace, lower, compile, first_run = seconds
    run = _record.begin(history, lambda: list(arguments))
    try:
        with _record.tracing(history, None):
            clock.sleep(trace)
            if inside is not None:
                inside()
            if error is not None:
                raise error
        for event, spent in ((LOWERED, lower), (COMPILED, compile)):
            clock.sleep(spent)
            _record._on_duration(event, spent)
        clock.sleep(first_run)
    finally:
        if site is not None:
            run.the_trace().site = site
        _record.end(run)
    return run.trace
