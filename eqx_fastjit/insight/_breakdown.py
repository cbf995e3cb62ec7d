"""Where the time of a call goes, warm and cold."""

# Of JAX's functions not all have types.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import collections
import contextlib
import dataclasses
import functools as ft
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np

from eqx_fastjit._compat import equinox_partition, jit_options, raw_execute
from eqx_fastjit._export import LOADING
from eqx_fastjit._function import native
from eqx_fastjit._install import equinox_filter_jit
from eqx_fastjit._jit import filter_jit
from eqx_fastjit._progress import Progress
from eqx_fastjit._units import show_seconds

from ._table import Report, Table
from ._target import Target, target
from ._timing import Blocking, measure, nothing, Timer


Thunk = Callable[[], Any]

# More than our own code generation waits for.
_WARM_CALLS = 40
# The eager call is timed for so long, or three times.
_EAGER_SECONDS = 0.3
_BAR = 24
# Seconds saved at start-up; less is not worth a file.
_WORTH_EXPORTING = 0.5


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a call, in seconds."""

    name: str
    seconds: float
    # Whether it was timed separately, or is a difference of timings.
    measured: bool
    what: str = ""


@dataclasses.dataclass(frozen=True)
class NodeTime:
    """Flattening all nodes of one type in the arguments, without those inside them."""

    type: str
    number: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Breakdown(Report):
    """What `breakdown` measured. All times are in seconds, medians over rounds."""

    name: str
    kind: str
    # Until the call returns, and until its result is there.
    dispatch: float
    blocked: float
    # Of a warm call, in order. They add up to `blocked`.
    steady: tuple[Part, ...]
    nodes: tuple[NodeTime, ...]
    # Of a cold call, once.
    cold: tuple[Part, ...]
    # The function without jit, warm; `None` if it does not run so.
    eager: float | None
    notes: tuple[str, ...] = ()

    @property
    def break_even(self) -> int | None:
        """Number of calls after which compiling pays off; `None` if it never does."""
        if self.eager is None or self.eager <= self.blocked:
            return None
        cost = sum(part.seconds for part in self.cold)
        return max(1, math.ceil(cost / (self.eager - self.blocked)))

    @property
    def export_saves(self) -> float:
        """Seconds of a cold call that `f.export` would save in each process.

        This is an estimate: native code is loaded instead of being traced, lowered and
        compiled. The page on exporting says what can be exported.
        """
        names = ("trace", "lower", "compile")
        spent = sum(part.seconds for part in self.cold if part.name in names)
        return (1 - LOADING) * spent

    def title(self) -> str:
        """A line with the sums."""
        return (
            f"{self.name} ({self.kind}): a warm call returns after "
            f"{show_seconds(self.dispatch)}, its result is ready after "
            f"{show_seconds(self.blocked)}"
        )

    def tables(self) -> list[Table]:
        """The waterfall, the nodes, and a cold call."""
        tables = [self._waterfall("A warm call", self.steady, self.notes)]
        if self.nodes:
            rows = [(x.type, x.number, show_seconds(x.seconds)) for x in self.nodes]
            note = "Without the nodes inside; each is a difference of two timings."
            header = ("type", "nodes", "time")
            tables.append(Table("Flatten by node type", header, rows, (note,)))
        if self.eager is None:
            verdict = (
                "The function does not run without jit, so there is no break-even."
            )
        elif self.break_even is None:
            verdict = (
                f"Without jit, a call takes {show_seconds(self.eager)}: compiling "
                "never pays off."
            )
        else:
            verdict = (
                f"Without jit, a call takes {show_seconds(self.eager)}: compiling "
                f"pays off after {self.break_even} calls."
            )
        said = (verdict,)
        if self.export_saves >= _WORTH_EXPORTING:
            saved = show_seconds(self.export_saves)
            said += (
                "Exporting it with its native code (`f.export`) would save about "
                f"{saved} of this in each process.",
            )
        tables.append(self._waterfall("A cold call", self.cold, said))
        return tables

    def _waterfall(
        self, title: str, parts: tuple[Part, ...], notes: tuple[str, ...]
    ) -> Table:
        total = sum(max(part.seconds, 0) for part in parts) or 1.0
        rows: list[Sequence[Any]] = []
        before = 0.0
        for part in parts:
            share = max(part.seconds, 0) / total
            first = round(before / total * _BAR)
            bar = " " * first + "#" * round(share * _BAR)
            how = "measured" if part.measured else "difference"
            time_ = show_seconds(part.seconds)
            rows.append((part.name, time_, f"{share:.0%}", bar, how, part.what))
            before += max(part.seconds, 0)
        header = ("part", "time", "share", "", "how", "")
        return Table(title, header, rows, notes)


def breakdown(f: Any, *args: Any, rounds: int = 15, **kwargs: Any) -> Breakdown:
    """Measure where the time of a call goes.

    The function is called some hundred times with these arguments. A cold call is timed
    with a fresh copy, for which jitted functions inside are traced again as well.

    **Arguments:**

    - `f`: a function under `eqx_fastjit.filter_jit`, `equinox.filter_jit` or `jax.jit`,
        or a plain one, which is jitted. If it donates arguments, a copy that does not
        is timed.
    - `*args`, `**kwargs`: the arguments of the call.
    - `rounds`: how often each part is timed, in turn with the others.

    **Returns:**

    A `Breakdown`. It shows which parts were timed separately and which are differences;
    small differences are noise. Raises what the function raises, and `ValueError` for
    less than one round.
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds}: expected at least 1")
    it = target(f)
    with Progress(f"breakdown of {it.name}") as progress:
        return _breakdown(it, f, args, kwargs, rounds, progress)


def _breakdown(
    it: Target,
    f: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    rounds: int,
    progress: Progress,
) -> Breakdown:
    notes: list[str] = []
    call = it.jitted if it.kind == "plain" else f
    if it.donates:
        it, call = _without_donation(it)
        notes.append("Timed without donation, which would delete the arguments.")
    cold, compiled, arrays = _cold(it, args, kwargs, notes, progress)
    execute = Timer(lambda: compiled(*arrays), jax.block_until_ready)
    if (raw := raw_execute(compiled, arrays)) is not None:
        execute = Timer(*raw)
    else:
        notes.append(
            "execute: includes JAX's dispatch, as jaxlib's own is not available."
        )
    progress.stage("the first call")
    for done in range(_WARM_CALLS):
        call(*args, **kwargs)
        progress.step("warm calls", done + 1, _WARM_CALLS)
    out = jax.block_until_ready(call(*args, **kwargs))

    timers = {
        name: Timer(thunk) for name, thunk in _parts(it, args, kwargs, out).items()
    }
    timers["execute"] = execute
    with Blocking() as blocking, Blocking() as in_place:
        timers |= _whole_calls(call, args, kwargs, blocking, in_place)
        told = ft.partial(progress.step, "rounds of timing")
        times = measure(timers, rounds, told)
    times["inside"] = statistics.median(blocking.calls)
    dispatch, blocked, steady = _steady(times, notes)
    return Breakdown(
        it.name,
        it.kind,
        dispatch,
        blocked,
        steady,
        _node_times(it, args, kwargs, progress),
        cold,
        _eager(it, args, kwargs, progress),
        tuple(notes),
    )


_WHAT = {
    "bind": "binding the arguments to parameters",
    "partition": "separating arrays and statics (Equinox), including flattening",
    "flatten": "flattening the arguments",
    "transfer": "transferring NumPy arrays to the device",
    "lookup": "finding the compiled program, and everything else",
    "execute": "starting the compiled program",
    "unflatten": "building the result",
    "wait": "until the device has finished",
}
_ORDER = ("bind", "partition", "flatten", "transfer", "lookup", "execute", "unflatten")


def _whole_calls(
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    blocking: Blocking,
    in_place: Blocking,
) -> dict[str, Timer]:
    """The call less what it blocks by itself, with its arrays in place, and whole."""
    block = jax.block_until_ready

    def run() -> Any:
        return call(*args, **kwargs)

    timers = {
        "dispatch": Timer(run, block, blocking),
        "blocked": Timer(lambda: block(run()), nothing),
    }
    if any(isinstance(x, _NUMPY) for x in jtu.tree_leaves((args, kwargs))):
        put = jax.device_put
        there, named = jtu.tree_map(
            lambda x: put(x) if isinstance(x, _NUMPY) else x, (args, kwargs)
        )
        timers["in place"] = Timer(lambda: call(*there, **named), block, in_place)
    return timers


_NUMPY = (np.ndarray, np.generic)


def _steady(
    times: dict[str, float], notes: list[str]
) -> tuple[float, float, tuple[Part, ...]]:
    """Until a call returns, until its result is there, and the parts of that."""
    # What Python does, and the time of the device. Where the two were timed in calls
    # of their own, the noise may be larger than the difference.
    own = times["dispatch"]
    returns = own + times["inside"]
    whole = max(times["blocked"], returns)
    if times["inside"] > 0:
        notes.append("The call itself blocks until its result is ready.")
    if "in place" in times:
        times["transfer"] = max(own - times["in place"], 0.0)
    measured = [n for n in _ORDER if n in times and n != "transfer"]
    apart = sum(times[name] for name in _ORDER if name in times)
    scale = 1.0
    if apart > own:
        scale = own / apart
        notes.append(
            f"The parts, timed one by one, take {apart / own - 1:.0%} longer than the "
            "call itself, and are scaled down to it."
        )
    # What is left; scaled down, nothing is, not even the rounding.
    times["lookup"] = max(own - apart, 0.0)
    parts = [
        Part(name, times[name] * scale, name in measured, _WHAT[name])
        for name in _ORDER
        if name in times
    ]
    parts.append(Part("wait", whole - own, False, _WHAT["wait"]))
    return returns, whole, tuple(parts)


def _without_donation(it: Target) -> tuple[Target, Any]:
    if it.kind == "jax":
        options = jit_options(it.jitted) or {}
        static = {k: v for k, v in options.items() if k.startswith("static")}
        call: Any = jax.jit(it.fun, **static)
        new = dataclasses.replace(it, jitted=call)
    elif it.kind == "equinox":
        call = equinox_filter_jit(it.fun)
        new = dataclasses.replace(it, jitted=filter_jit(it.fun))
    else:
        call = filter_jit(it.fun)
        new = dataclasses.replace(it, jitted=call)

    def complete(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = it.complete(args, kwargs)
        return call(*args, **kwargs)

    return new, complete


def _cold(
    it: Target,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    notes: list[str],
    progress: Progress,
) -> tuple[tuple[Part, ...], Any, list[Any]]:
    """The stages of a cold call, the compiled program, and its arrays on the device."""
    clock = time.perf_counter
    with _cold_caches(notes):
        progress.stage("tracing")
        traced = it.trace(args, kwargs, donate=False)
        progress.stage("lowering")
        times = [clock()]
        lowered = traced.stage.lower()
        times.append(clock())
        progress.stage("compiling")
        compiled = lowered.compile()
        times.append(clock())
        jax.block_until_ready(compiled(*traced.arrays))
        times.append(clock())
    lower, compile_, first = [b - a for a, b in itertools.pairwise(times)]
    cold = (
        Part("trace", traced.seconds, True, "the Python function runs"),
        Part("lower", lower, True, "from the jaxpr to StableHLO"),
        Part("compile", compile_, True, "by XLA"),
        Part("first run", first, True, "the compiled program, until it has finished"),
    )
    return cold, compiled, [jax.device_put(x) for x in traced.arrays]


@ft.cache
def _context() -> Any:
    """A setting of the user's, which is part of the key of each of JAX's caches."""
    make = getattr(jax, "make_user_context", None)
    return None if make is None else make()


def _cold_caches(notes: list[str]) -> contextlib.AbstractContextManager[Any]:
    """A context in which nothing has been traced, lowered or compiled before.

    Functions inside of a function have caches of their own; once warm, they would make
    it look cheaper than it was. (`jax.clear_caches()` would do, but have everything
    else compiled again.)
    """
    if (context := _context()) is None:
        notes.append(
            "A cold call: jitted functions inside that were traced before are not "
            "traced again, because this JAX has no `jax.make_user_context`."
        )
        return contextlib.nullcontext()
    return context(object())


def _parts(
    it: Target, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
) -> dict[str, Thunk]:
    """What can be run by itself."""
    args, kwargs = it.complete(args, kwargs)
    leaves, treedef = jtu.tree_flatten(out)
    if it.kind == "jax":
        return {
            "flatten": lambda: jtu.tree_flatten((args, kwargs)),
            "unflatten": lambda: jtu.tree_unflatten(treedef, leaves),
        }
    if it.kind == "equinox":
        tree = (it.fun, args, kwargs)
        thunks: dict[str, Thunk] = {
            "unflatten": lambda: jtu.tree_unflatten(treedef, leaves)
        }
        partition = equinox_partition()
        if partition is None:
            return {"flatten": lambda: jtu.tree_flatten(tree), **thunks}
        return {"partition": lambda: partition(tree), **thunks}
    function = it.jitted._function
    values = it.jitted._bind(*args, **kwargs)
    plan, out_arrays = function.plan_of(values)
    flatten = _walker(it)
    build = plan.build if native() is None else plan.native.build
    return {
        "bind": lambda: it.jitted._bind(*args, **kwargs),
        "flatten": lambda: flatten(values),
        "unflatten": lambda: build(out_arrays),
    }


def _node_times(
    it: Target, args: tuple[Any, ...], kwargs: dict[str, Any], progress: Progress
) -> tuple[NodeTime, ...]:
    """What flattening each node of the arguments takes, those below it left out."""
    args, kwargs = it.complete(args, kwargs)
    flatten: Callable[[Any], Any] = jtu.tree_leaves
    root = (args, kwargs) if it.kind == "jax" else (it.fun, args, kwargs)
    if it.kind not in ("jax", "equinox"):
        root = it.jitted._bind(*args, **kwargs)
        flatten = _walker(it)
    seconds: collections.defaultdict[str, float] = collections.defaultdict(float)
    numbers: collections.Counter[str] = collections.Counter()

    # Each node with the number of the one around it; trees may be deep.
    pending: list[tuple[Any, int]] = [(x, -1) for x in root]
    found: list[tuple[str, float, int]] = []
    while pending:
        x, around = pending.pop()
        children = jtu.tree_leaves(x, is_leaf=lambda y, x=x: y is not x)
        if len(children) == 1 and children[0] is x:
            continue  # a leaf is its own only child
        timer = Timer(lambda x=x: flatten((x,)))
        whole = min(timer.seconds(5) for _ in range(3))
        pending += [(child, len(found)) for child in children]
        found.append((type(x).__name__, whole, around))
        progress.step("nodes", len(found), len(found) + len(pending))
    own = [whole for _, whole, _ in found]
    for _, whole, around in found:
        if around >= 0:
            own[around] -= whole
    for (name, _, _), rest in zip(found, own, strict=True):
        numbers[name] += 1
        seconds[name] += max(rest, 0.0)
    return tuple(
        NodeTime(name, numbers[name], total)
        for name, total in sorted(seconds.items(), key=lambda item: -item[1])
    )


def _walker(it: Target) -> Callable[[Any], Any]:
    """What takes the arguments of a call of ours apart."""
    engine = native()
    return it.jitted._function.walk if engine is None else engine.arrays_of


def _eager(
    it: Target, args: tuple[Any, ...], kwargs: dict[str, Any], progress: Progress
) -> float | None:
    """Median seconds of a call without jit."""
    progress.stage("calls without jit")
    try:
        jax.block_until_ready(it.eager(*args, **kwargs))
    except Exception:
        return None
    times: list[float] = []
    end = time.perf_counter() + _EAGER_SECONDS
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 100):
        start = time.perf_counter()
        jax.block_until_ready(it.eager(*args, **kwargs))
        times.append(time.perf_counter() - start)
    return statistics.median(times)
