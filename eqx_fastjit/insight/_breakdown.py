"""Where the time of a warm call and of a cold call goes."""

# Of JAX's functions not all have types.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false

import dataclasses
import functools as ft
import math
import statistics
import time
from typing import Any

import jax
import jax.tree_util as jtu

from eqx_fastjit._compat import jit_options
from eqx_fastjit._export import LOADING
from eqx_fastjit._install import equinox_filter_jit
from eqx_fastjit._jit import filter_jit
from eqx_fastjit._progress import Progress
from eqx_fastjit._units import plural, show_seconds

from ._table import Report, Table
from ._target import Target, target
from ._timing import Timer
from ._warm_call import flattening, Part, prepare, time_calls, waterfall


# The eager call is timed for so long, or three times.
_EAGER_SECONDS = 0.3
# Seconds saved at start-up; less is not worth a file.
_WORTH_EXPORTING = 0.5


@dataclasses.dataclass(frozen=True)
class NodeTime:
    """The time to flatten all nodes of one type, without their children."""

    type: str
    number: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Breakdown(Report):
    """The result of `breakdown`. Times are in seconds, and medians over rounds."""

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
        """After how many calls compiling pays off, or `None` if it never does."""
        if self.eager is None or self.eager <= self.blocked:
            return None
        cost = sum(part.seconds for part in self.cold)
        return max(1, math.ceil(cost / (self.eager - self.blocked)))

    @property
    def export_saves(self) -> float:
        """Seconds of a cold call that `f.export` would save in each process.

        This is an estimate, for loading native code rather than tracing, lowering and
        compiling. The page on exporting says what can be exported.
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
        tables = [waterfall("A warm call", self.steady, self.notes)]
        if self.nodes:
            rows = [(x.type, x.number, show_seconds(x.seconds)) for x in self.nodes]
            note = "Without the nodes inside; each is a difference of two timings."
            header = ("type", "nodes", "time")
            tables.append(Table("Flatten by node type", header, rows, (note,)))
        verdict = "The function does not run without jit, so there is no break-even."
        if self.eager is not None:
            pays_off = "never pays off"
            if self.break_even is not None:
                pays_off = f"pays off after {plural(self.break_even, 'call')}"
            cost = show_seconds(self.eager)
            verdict = f"Without jit, a call takes {cost}: compiling {pays_off}."
        said = (verdict,)
        if self.export_saves >= _WORTH_EXPORTING:
            saved = show_seconds(self.export_saves)
            said += (
                "Exporting it with its native code (`f.export`) would save about "
                f"{saved} of this in each process.",
            )
        tables.append(waterfall("A cold call", self.cold, said))
        return tables


def breakdown(f: Any, *args: Any, rounds: int = 15, **kwargs: Any) -> Breakdown:
    """Measure where the time of a call goes.

    The function is called some hundred times with these arguments. Cold calls are timed
    with a fresh copy, in which inner jitted functions are traced again as well.

    **Arguments:**

    - `f`: a function under `eqx_fastjit.filter_jit`, `equinox.filter_jit` or `jax.jit`,
        or a plain function, which is then jitted. It is timed without donation.
    - `*args`, `**kwargs`: the arguments of the call.
    - `rounds`: how often each part is timed. The parts take turns.

    **Returns:**

    A `Breakdown`. It shows which parts were timed separately, and which are
    differences. Small differences are noise. Raises what the function raises, and
    `ValueError` for less than one round.
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds}: expected at least 1")
    it = target(f)
    notes: tuple[str, ...] = ()
    call = it.jitted if it.kind == "plain" else f
    if it.donates:
        it, call = _without_donation(it)
        notes = ("Timed without donation, which would delete the arguments.",)
    with Progress(f"breakdown of {it.name}") as progress:
        prepared = prepare(it, call, args, kwargs, progress)
        warm = time_calls({"": prepared}, rounds, progress)[""]
        return Breakdown(
            it.name,
            it.kind,
            warm.dispatch,
            warm.blocked,
            warm.parts,
            _node_times(it, args, kwargs, progress),
            prepared.program.cold,
            _eager(it, args, kwargs, progress),
            notes + warm.notes,
        )


def _without_donation(it: Target) -> tuple[Target, Any]:
    if it.kind == "jax":
        options = jit_options(it.jitted) or {}
        static = {k: v for k, v in options.items() if k.startswith("static")}
        jitted: Any = jax.jit(it.fun, **static)
    else:
        jitted = filter_jit(it.fun)
    call = equinox_filter_jit(it.fun) if it.kind == "equinox" else jitted
    bound = ft.partial(call, *it.args, **it.kwargs)
    return dataclasses.replace(it, jitted=jitted), bound


def _node_times(
    it: Target, args: tuple[Any, ...], kwargs: dict[str, Any], progress: Progress
) -> tuple[NodeTime, ...]:
    """What flattening each node of the arguments takes, those below it left out."""
    root, flatten = flattening(it, *it.complete(args, kwargs))
    # Each node with the number of the one around it; trees may be deep.
    pending = [(x, -1) for x in root]
    # Type of each, the seconds with all that is in it, and the number of that node.
    found: list[tuple[str, float, int]] = []
    while pending:
        x, around = pending.pop()
        children = jtu.tree_leaves(x, is_leaf=lambda y, x=x: y is not x)
        if len(children) == 1 and children[0] is x:
            continue  # a leaf is its own only child
        timer = Timer(lambda x=x: flatten((x,)))
        whole = min(timer.time(5).own for _ in range(3))
        pending += [(child, len(found)) for child in children]
        found.append((type(x).__name__, whole, around))
        progress.step("nodes", len(found), len(found) + len(pending))
    own = [whole for _, whole, _ in found]
    for _, whole, around in found:
        if around >= 0:
            own[around] -= whole
    by_type: dict[str, list[float]] = {}
    for (name, _, _), rest in zip(found, own, strict=True):
        by_type.setdefault(name, []).append(max(rest, 0.0))
    times = [NodeTime(name, len(x), sum(x)) for name, x in by_type.items()]
    return tuple(sorted(times, key=lambda node: -node.seconds))


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
