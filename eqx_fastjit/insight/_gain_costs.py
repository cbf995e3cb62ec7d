"""The time of a call under Equinox, under ours, and the least possible time."""

# Of JAX's functions not all have types.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.tree_util as jtu

from eqx_fastjit._compat import raw_execute
from eqx_fastjit._engine import native
from eqx_fastjit._install import equinox_filter_jit
from eqx_fastjit._jit import filter_jit, jitted_function
from eqx_fastjit._nodes import ARRAY_TYPES
from eqx_fastjit._partition import partition

from ._samples import alive, Called, Signature
from ._timing import Blocking, measure, nothing, Timer, warm_up


_WARM_CALLS = 20
_ROUNDS = 15
# A call that takes longer, in seconds, is timed in three rounds; and one that takes
# longer than this not at all: what it costs beside its work cannot matter.
_LONG = 0.02
_TOO_LONG = 0.5


@dataclasses.dataclass(frozen=True)
class Costs:
    """Of a warm call, in seconds. Medians of interleaved rounds."""

    # Until the call returns.
    equinox: float
    ours: float
    # `jax.jit` of the arrays in a flat list: the least that it costs in JAX.
    floor: float
    # Until the compiled program is done, started with nothing of JAX's around it.
    device: float
    # What Python, JAX and the engine do in the call, beside starting that program and
    # waiting for it.
    equinox_overhead: float
    ours_overhead: float
    floor_overhead: float


def function_costs(
    called: Called, until: float, clock: Callable[[], float] = time.monotonic
) -> tuple[Costs | None, str]:
    """The costs of a call, in the mean over the signatures that were called most.

    Or `None`, and the reason why there are none. After the time `until` of `clock`, no
    signature is begun on.
    """
    found: list[tuple[int, Costs]] = []
    reason = "" if called.signatures else "called only under eager transformations"
    for signature in called.ranked():
        # What takes a tenth of the calls or less says little, and has to be compiled.
        if found and signature.calls < 0.1 * called.calls:
            break
        if clock() > until:
            reason = reason or "not timed: --replay was used up"
            break
        try:
            costs, why = _costs(signature, called.options.kwargs())
        except Exception as e:
            costs, why = None, f"{type(e).__name__}: {e}".splitlines()[0][:200]
        reason = reason or why
        if costs is not None:
            found.append((signature.calls, costs))
    if not found:
        return None, reason
    calls = sum(n for n, _ in found)
    mean = [
        sum(n * getattr(c, field.name) for n, c in found) / calls
        for field in dataclasses.fields(Costs)
    ]
    return Costs(*mean), ""


def _costs(signature: Signature, options: dict[str, Any]) -> tuple[Costs | None, str]:
    fun, args, kwargs = alive(signature)
    ours = filter_jit(fun, **options)
    _wait(ours(*args, **kwargs))  # may have to compile, where arguments were donated
    start = time.perf_counter()
    _wait(ours(*args, **kwargs))
    seconds = time.perf_counter() - start
    if seconds > _TOO_LONG:
        return None, f"a call takes {seconds:.2g} s, so its overhead does not matter"
    equinox = equinox_filter_jit(fun, **options)
    flat, raw = _floor(ours, args, kwargs)
    if raw is None:
        return None, "jaxlib's own call of a compiled program is not available"
    calls = {
        "equinox": lambda: equinox(*args, **kwargs),
        "ours": lambda: ours(*args, **kwargs),
        "floor": flat,
    }
    for call in calls.values():
        warm_up(call, _WARM_CALLS if seconds < _LONG else 2)
    return _measured(calls, raw, 3 if seconds > _LONG else _ROUNDS), ""


def _measured(
    calls: dict[str, Callable[[], Any]],
    raw: tuple[Callable[[], Any], Callable[[Any], Any]],
    rounds: int,
) -> Costs:
    run, wait = raw
    with Blocking() as blocking:
        timers = {name: Timer(call, _wait, blocking) for name, call in calls.items()}
        timers["launch"] = Timer(run, wait)
        timers["device"] = Timer(lambda: wait(run()), nothing)
        times = measure(timers, rounds)
    # Started by jaxlib alone; the rest is on top of that. A small program is run before
    # that returns, if its arrays are there, and no call needs to wait for this.
    launch = min(times["launch"].own, times["floor"].own)
    return Costs(
        **{name: times[name].whole for name in calls},
        device=times["device"].own,
        **{f"{name}_overhead": max(times[name].own - launch, 0.0) for name in calls},
    )


def _wait(out: Any) -> None:
    """Wait for a result, without going through its pytree in Python."""
    engine = native()
    arrays = jtu.tree_leaves(out) if engine is None else engine.arrays_of((out,))
    jax.block_until_ready(arrays[:1])


def _floor(ours: Any, args: Any, kwargs: Any) -> tuple[Callable[[], Any], Any]:
    """A call of `jax.jit` on the arrays alone, and of what it compiles by jaxlib."""
    function = jitted_function(ours)
    arrays, structure = partition(ours._bind(*args, **kwargs))

    def floor(*arrays: Any) -> list[Any]:
        out = function.call_python(*structure.rebuild(arrays))
        return [x for x in jtu.tree_leaves(out) if isinstance(x, ARRAY_TYPES)]

    floor.__name__ = floor.__qualname__ = function.name
    jitted = jax.jit(floor)
    traced = jitted.trace(*arrays)
    compiled = traced.lower().compile()
    there = [jax.device_put(x) for x in arrays]
    raw = raw_execute(compiled, there)
    if raw is None:  # JAX leaves out what is not used
        raw = raw_execute(compiled, [there[i] for i in _used(traced.jaxpr.jaxpr)])
    return lambda: jitted(*arrays), raw


def _used(jaxpr: Any) -> list[int]:
    """Which inputs a program makes something of."""
    try:
        from jax.interpreters.partial_eval import dce_jaxpr

        _, used = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    except Exception:  # another JAX
        used = [True] * len(jaxpr.invars)
    return [i for i, x in enumerate(used) if x]
