"""The parts of a warm call, for `breakdown` and `profile`."""

# Of JAX's functions not all have types.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import contextlib
import dataclasses
import functools as ft
import itertools
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import jax
import jax.tree_util as jtu
import numpy as np

from eqx_fastjit._compat import equinox_partition, raw_execute
from eqx_fastjit._engine import native
from eqx_fastjit._progress import Progress
from eqx_fastjit._units import show_seconds

from ._table import Table
from ._target import compile_traced, Target
from ._timing import Blocking, measure, nothing, Timed, Timer, warm_up


# In the order of a call.
PARTS = {
    "bind": "binding the arguments to parameters",
    "partition": "separating arrays and statics (Equinox), including flattening",
    "flatten": "flattening the arguments",
    "transfer": "transferring NumPy arrays to the device",
    "lookup": "finding the compiled program, and everything else",
    "execute": "starting the compiled program",
    "unflatten": "building the result",
    "wait": "until the device has finished",
}
_NUMPY = (np.ndarray, np.generic)
# The parts may take so much longer than the call, one by one, and nothing is said.
_TOLERANCE = 0.1
# Of the time until a program has finished, started by itself: if more has passed when
# it returns, it has computed.
_INLINE = 0.8
# Half of the rounds of a quiet machine are closer together than this.
_NOISY = 0.5
_TOO_NOISY = (
    "The machine is too noisy to tell the parts apart: one by one, they take longer "
    "than the call, and are cut down to it."
)
# Seconds that a sum of parts may be off.
_ROUNDING = 1e-10
# Characters of the longest bar.
_BAR = 24


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a call, in seconds."""

    name: str
    seconds: float
    # Whether it was timed separately, or is a difference of timings.
    measured: bool
    what: str = ""


class WarmCall(NamedTuple):
    """A warm call, in seconds."""

    # Until the call returns, and until its result is there.
    dispatch: float
    blocked: float
    # In order. They add up to `blocked`.
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()


class Program(NamedTuple):
    """A compiled program, and how it came about."""

    cold: tuple[Part, ...]
    execute: Timer
    notes: tuple[str, ...] = ()


def compile_cold(
    it: Target, args: tuple[Any, ...], kwargs: dict[str, Any], progress: Progress
) -> Program:
    """The stages of a cold call, one after the other."""
    with _cold_caches() as notes:
        progress.stage("tracing")
        traced = it.trace(args, kwargs, donate=False)
        compiled, lower, compile_ = compile_traced(traced, progress)
        start = time.perf_counter()
        jax.block_until_ready(compiled(*traced.arrays))
        first = time.perf_counter() - start
    cold = (
        Part("trace", traced.seconds, True, "the Python function runs"),
        Part("lower", lower, True, "from the jaxpr to StableHLO"),
        Part("compile", compile_, True, "by XLA"),
        Part("first run", first, True, "the compiled program, until it has finished"),
    )
    arrays = [jax.device_put(x) for x in traced.arrays]
    if (raw := raw_execute(compiled, arrays)) is None:
        raw = (lambda: compiled(*arrays), jax.block_until_ready)
        notes += (
            "execute: includes JAX's dispatch, as jaxlib's own is not available.",
        )
    return Program(cold, Timer(*raw), notes)


# A setting that is part of the key of each of JAX's caches, and has no effect unless
# `jax_enable_pgle` is on. `jax.make_user_context` is meant for this, but the first one
# has everything in the process compiled again, as `jax.clear_caches()` has.
_KEY = "jax_pgle_profiling_runs"
_numbers = itertools.count(1)


@contextlib.contextmanager
def _cold_caches() -> Generator[tuple[str, ...], None, None]:
    """Within this, nothing has been traced, lowered or compiled before.

    Functions inside of a function have caches of their own; once warm, they would make
    it look cheaper than it was. Gives what to say if it cannot be had.
    """
    old = getattr(jax.config, _KEY, None)
    if old is None or getattr(jax.config, "jax_enable_pgle", False):
        yield (
            "A cold call: jitted functions inside that were traced before are not "
            "traced again.",
        )
        return
    jax.config.update(_KEY, old + next(_numbers))
    try:
        yield ()
    finally:
        jax.config.update(_KEY, old)


class Call(NamedTuple):
    """A call to time. It has been made before."""

    target: Target
    # What is called, which the target may be another spelling of.
    f: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    program: Program


def prepare(
    it: Target,
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    progress: Progress,
) -> Call:
    """Compile it, and make the calls that do not count."""
    program = compile_cold(it, args, kwargs, progress)
    progress.stage("the first call")
    told = ft.partial(progress.step, "warm calls")
    warm_up(ft.partial(f, *args, **kwargs), progress=told)
    return Call(it, f, args, kwargs, program)


def time_calls(
    calls: dict[str, Call], rounds: int, progress: Progress
) -> dict[str, WarmCall]:
    """Time the parts of several calls, in rounds that take turns with one another."""
    with Blocking() as blocking:
        timers = {
            (name, part): timer
            for name, call in calls.items()
            for part, timer in _timers(call, blocking).items()
        }
        times = measure(timers, rounds, ft.partial(progress.step, "rounds of timing"))
    out: dict[str, WarmCall] = {}
    for name, call in calls.items():
        own = {part: timed for (whose, part), timed in times.items() if whose == name}
        warm = split_call(own)
        out[name] = warm._replace(notes=call.program.notes + warm.notes)
    return out


def _timers(call: Call, blocking: Blocking) -> dict[str, Timer]:
    """The call's parts; the call until it returns, and until its result is there."""
    block = jax.block_until_ready
    run = ft.partial(call.f, *call.args, **call.kwargs)
    arguments = call.target.complete(call.args, call.kwargs)
    timers = _parts(call.target, *arguments, block(run()))
    timers["execute"] = execute = call.program.execute
    if (wait := execute.wait) is not None:
        timers["finished"] = Timer(lambda: wait(execute.run()), nothing)
    timers["dispatch"] = Timer(run, block, blocking)
    timers["blocked"] = Timer(lambda: block(run()), nothing)
    if any(isinstance(x, _NUMPY) for x in jtu.tree_leaves((call.args, call.kwargs))):
        args, kwargs = jtu.tree_map(
            lambda x: jax.device_put(x) if isinstance(x, _NUMPY) else x,
            (call.args, call.kwargs),
        )
        there = ft.partial(call.f, *args, **kwargs)
        timers["in place"] = Timer(there, block, blocking)
    return timers


def _parts(
    it: Target, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
) -> dict[str, Timer]:
    """What can be run by itself."""
    tree, flatten = flattening(it, args, kwargs)
    leaves, treedef = jtu.tree_flatten(out)
    unflatten = Timer(lambda: jtu.tree_unflatten(treedef, leaves))
    if it.kind == "equinox" and (partition := equinox_partition()) is not None:
        return {"partition": Timer(lambda: partition(tree)), "unflatten": unflatten}
    timers = {"flatten": Timer(lambda: flatten(tree)), "unflatten": unflatten}
    if it.kind not in ("jax", "equinox"):
        plan, out_arrays = it.jitted._function.plan_of(tree)
        build = plan.build if native() is None else plan.native.build
        timers["bind"] = Timer(lambda: it.jitted._bind(*args, **kwargs))
        timers["unflatten"] = Timer(lambda: build(out_arrays))
    return timers


def flattening(
    it: Target, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Callable[[Any], Any]]:
    """What is flattened in a call, and what does that."""
    if it.kind == "jax":
        return (args, kwargs), jtu.tree_leaves
    if it.kind == "equinox":
        return (it.fun, args, kwargs), jtu.tree_leaves
    values, engine = it.jitted._bind(*args, **kwargs), native()
    return values, it.jitted._function.walk if engine is None else engine.arrays_of


def split_call(times: dict[str, Timed]) -> WarmCall:
    """Divide a call among its parts.

    `times` are those of each part that was run by itself; of the compiled program until
    it has finished ("finished"); of the call ("dispatch"), also with its arrays in
    place ("in place"); and until its result is there ("blocked").
    """
    call = times["dispatch"]
    notes: list[str] = []
    if call.blocking > 0:
        notes.append("The call itself blocks until its result is ready.")
    seconds = {name: times[name].own for name in PARTS if name in times}
    measured = set(seconds)
    if "in place" in times:
        seconds["transfer"] = max(call.own - times["in place"].own, 0.0)
    # Timed in calls of its own, so that noise may make it the shorter one.
    whole = max(times["blocked"].own, call.whole)
    execute, finished = seconds["execute"], times["finished"].own
    computes = _INLINE * finished < execute < (1 + _TOLERANCE) * whole
    if (note := _fit(seconds, call.own, computes)) is not None:
        notes.append(note)
        measured.discard("execute")
    if note is not _TOO_NOISY and call.spread > _NOISY:
        notes.append(
            "This machine is too busy for exact figures: the middle half of the rounds "
            f"is spread over {call.spread:.0%} of their median."
        )
    left = call.own - sum(seconds.values())
    seconds["lookup"] = left if left > _ROUNDING else 0.0
    seconds["wait"] = whole - call.own
    parts = tuple(
        Part(name, seconds[name], name in measured, what)
        for name, what in PARTS.items()
        if name in seconds
    )
    return WarmCall(call.whole, whole, parts, tuple(notes))


def _fit(seconds: dict[str, float], whole: float, computes: bool) -> str | None:
    """Make parts fit into the whole. Returns what to say of that, if anything.

    `computes` says whether the compiled program, started by itself, computes before it
    returns. XLA's CPU client does so for small programs whose arguments are there. In a
    call they may not be; the program then runs in another thread, while Python goes on.
    """
    total = sum(seconds.values())
    if total <= whole:
        return None
    execute = seconds["execute"]
    others = total - execute
    if others < whole:
        seconds["execute"] = whole - others
        if total <= (1 + _TOLERANCE) * whole:
            return None
        if not computes:
            return _TOO_NOISY
        return (
            "execute: what the other parts leave of the call. Started by itself, the "
            f"program returns after {show_seconds(execute)}, because it computes "
            "before it returns; in the call, that is part of the wait."
        )
    for name in seconds:
        seconds[name] *= whole / total
    return _TOO_NOISY


def waterfall(title: str, parts: Sequence[Part], notes: tuple[str, ...]) -> Table:
    """Parts after one another, with their shares."""
    total = sum(part.seconds for part in parts) or 1.0
    rows: list[Sequence[Any]] = []
    before = 0.0
    for part in parts:
        share = part.seconds / total
        bar = " " * round(before / total * _BAR) + "#" * round(share * _BAR)
        how = "measured" if part.measured else "difference"
        time_ = show_seconds(part.seconds)
        rows.append((part.name, time_, f"{share:.0%}", bar, how, part.what))
        before += part.seconds
    return Table(title, ("part", "time", "share", "", "how", ""), rows, notes)
