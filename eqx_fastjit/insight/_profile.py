"""`profile`: what a call costs, and where Python spends the time."""

import dataclasses
import functools
import importlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu

import eqx_fastjit
from eqx_fastjit import _events
from eqx_fastjit._install import _equinox_filter_jit
from eqx_fastjit._jit import filter_jit
from eqx_fastjit._private import raw_execute

from ._table import show_time, table
from ._target import flatten, Target, target, trace
from ._timing import time_calls, Timing


OURS, EQUINOX, FLAT, RAW = (
    "eqx_fastjit",
    "equinox.filter_jit",
    "jax.jit, flat arrays",
    "the program alone",
)
# Seconds that a profile may take, beyond compiling the function once; of those, what
# the rounds of timing and each of the sampled functions may.
_SECONDS, _TIMING_SECONDS, _SAMPLING_SECONDS = 20.0, 4.0, 1.0
# Calls of each function that are made at least, before the sampling.
_LEAST_CALLS = 6
# Seconds between two samples.
_INTERVAL = 1e-3
# The share of a call, or of a program, from which on a saving matters.
MATTERS = 0.05


@dataclasses.dataclass(frozen=True)
class Costs:
    """What a call takes under each jit. Seconds."""

    timings: dict[str, Timing]
    # Whether they are of a function that computes nothing, with the same arguments and
    # results: compiling and calling the user's own would take too long.
    stand_in: bool
    # A call of the user's function under eqx_fastjit, until its result is ready.
    call: float

    @property
    def saved(self) -> tuple[float, float]:
        """What a call saves over Equinox's, and how exact that is."""
        return self.timings[OURS].saves_over(self.timings[EQUINOX])

    @property
    def overhead(self) -> float:
        """What a call takes in addition to `jax.jit` of its arrays alone."""
        return max(0.0, self.timings[FLAT].saves_over(self.timings[OURS])[0])

    def __str__(self) -> str:
        rows = [
            (name, show_time(x.returns), show_time(x.ready))
            for name, x in self.timings.items()
        ]
        title = "A warm call"
        if self.stand_in:
            title = (
                "A warm call of a function with the same arguments and results that "
                "computes nothing"
            )
        return table(title, ("", "returns after", "result ready after"), rows)

    def sentence(self) -> str:
        """What a call costs, what of it is saved, and whether that matters."""
        saved, noise = self.saved
        cost, overhead = self.call, self.overhead
        share = saved / (cost + saved)
        begin = (
            f"A call takes {show_time(cost)}: {show_time(max(0.0, cost - overhead))} "
            "are `jax.jit` and the program itself, which eqx_fastjit cannot save, and "
            f"{show_time(overhead)} are its own overhead"
        )
        if saved <= noise:
            return (
                f"{begin}; the difference from Equinox is within the noise of "
                f"{show_time(noise)}, so it does not matter for this function."
            )
        verdict = "so it matters" if share >= MATTERS else "so it matters little"
        return (
            f"{begin}; it saves {show_time(saved)} that `equinox.filter_jit` takes in "
            f"addition ({share:.0%} of Equinox's call), {verdict}: 10,000 calls save "
            f"{show_time(10_000 * saved)}."
        )


@dataclasses.dataclass(frozen=True)
class FirstCall:
    """The stages of a first call, in seconds."""

    trace: float
    lower: float
    compile: float

    def __str__(self) -> str:
        names = {
            "trace": "the Python function runs",
            "lower": "from the jaxpr to StableHLO",
            "compile": "XLA",
        }
        rows = [(k, show_time(getattr(self, k)), what) for k, what in names.items()]
        return table("A first call", ("stage", "time", ""), rows)

    def sentence(self) -> str:
        """What a first call costs, and what can be saved."""
        total = self.trace + self.lower + self.compile
        python, xla = show_time(self.trace), show_time(self.compile)
        return (
            f"A first call takes {show_time(total)}: {python} in Python, {xla} in XLA, "
            "the rest in lowering; eqx_fastjit "
            "saves none of this: JAX's persistent cache saves most of XLA's part in "
            "later processes, `f.export` saves tracing as well, and the tree shows "
            "which of your lines Python is slow in."
        )


@dataclasses.dataclass(frozen=True)
class Profile:
    """The result of `profile`."""

    name: str
    costs: Costs | FirstCall
    # A session of pyinstrument.
    session: Any

    def __str__(self) -> str:
        return "\n\n".join(
            [
                f"profile of {self.name}",
                str(self.costs),
                tree_text(self.session),
                self.costs.sentence(),
            ]
        )

    __repr__ = __str__

    def html(self) -> str:
        """Pyinstrument's page, which needs nothing else."""
        return tree_html(self.session)


def profile(
    f: Any,
    *args: Any,
    first: bool = False,
    html: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> Profile:
    """Profile warm calls under `eqx_fastjit`, Equinox and `jax.jit`; or a first call.

    Warm calls are timed without a profiler, in interleaved rounds, and sampled
    afterwards. For `jax.jit`, everything but the arrays is removed by hand. The
    function is called without donation. This needs pyinstrument.

    **Arguments:**

    - `f`: a function, jitted in any way or not.
    - `*args`, `**kwargs`: the arguments of the calls.
    - `first`: whether to profile a first call instead: the function is traced and
        compiled as if it were new, though functions inside it may have been traced.
    - `html`: a file, to which pyinstrument's page is written.

    **Returns:**

    A `Profile`. `str(profile)` has the timings, pyinstrument's tree with the frames of
    libraries grouped, and one sentence on what can be saved. This takes 20 s at most,
    beyond compiling the function once.

    **Raises:**

    `TypeError` if `f` is not callable, `ImportError` without pyinstrument, `OSError`
    if the file cannot be written, and what the function raises.
    """
    importlib.import_module("pyinstrument")  # say now that it is missing
    it = target(f)
    if html is not None:
        with open(html, "a"):  # say now that it cannot be written
            pass
    out = _profile_first(it, args, kwargs) if first else _profile_warm(it, args, kwargs)
    if html is not None:
        Path(html).write_text(out.html(), encoding="utf-8")
    return out


def _profile_first(it: Target, args: Any, kwargs: Any) -> Profile:
    clock = time.perf_counter
    with _profiler() as profiler:
        traced = trace(it, args, kwargs)
    start = clock()
    lowered = traced.stage.lower()
    lower = clock() - start
    start = clock()
    lowered.compile()
    stages = FirstCall(traced.seconds, lower, clock() - start)
    return Profile(it.name, stages, profiler.last_session)


def _profile_warm(it: Target, args: Any, kwargs: Any) -> Profile:
    args, kwargs = it.complete(args, kwargs)
    costs, calls = measure(it.fun, args, kwargs)
    with _profiler() as profiler:
        for name, run in _SAMPLED.items():
            seconds = costs.timings[name].ready
            run(calls[name], max(1, int(_SAMPLING_SECONDS / max(seconds, 1e-9))))
    return Profile(it.name, costs, profiler.last_session)


def _run(call: Callable[[], Any], n: int) -> None:
    for _ in range(n):
        jax.block_until_ready(call())


# These stand in the tree, with the calls below them.


def under_eqx_fastjit(call: Callable[[], Any], n: int) -> None:
    """Make calls under this library."""
    _run(call, n)


def under_equinox(call: Callable[[], Any], n: int) -> None:
    """Make calls under Equinox's `filter_jit`."""
    _run(call, n)


_SAMPLED = {OURS: under_eqx_fastjit, EQUINOX: under_equinox}


# --- what a call costs ----------------------------------------------------------------


def measure(
    fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Costs, dict[str, Callable[[], Any]]]:
    """Time warm calls of a function, jitted in each way. Returns the calls as well."""
    clock = time.perf_counter
    ours = functools.partial(filter_jit(fun), *args, **kwargs)
    start = clock()
    jax.block_until_ready(ours())
    compiling = max(clock() - start, _compiled_in(fun))
    seconds = min(_timed(ours) for _ in range(2))
    left = _SECONDS - 2 * _SAMPLING_SECONDS - _TIMING_SECONDS
    # Equinox and `jax.jit` are to compile it, too.
    stand_in = 2 * compiling + 3 * _LEAST_CALLS * seconds > left
    if stand_in:
        fun, args, kwargs = _stand_in(fun, args, kwargs), (fun, *args), kwargs
        ours = functools.partial(filter_jit(fun, keep_unused=True), *args, **kwargs)
    jitted = _equinox_filter_jit(fun, **({"keep_unused": True} if stand_in else {}))
    calls = {OURS: ours, EQUINOX: functools.partial(jitted, *args, **kwargs)}
    calls |= _flat_calls(fun, args, kwargs)
    for call in calls.values():
        jax.block_until_ready(call())
    timings = time_calls(calls, _TIMING_SECONDS)
    call = seconds if stand_in else timings[OURS].ready
    return Costs(timings, stand_in, call), calls


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def _compiled_in(fun: Any) -> float:
    """The most seconds that a trace and compilation of a function has taken."""
    function = filter_jit(fun)._function.info.key()
    own = (e.seconds for e in _events.history if e.function.key() == function)
    return max(own, default=0.0)


def _flat_calls(fun: Any, args: Any, kwargs: Any) -> dict[str, Callable[[], Any]]:
    """The function of its arrays alone, under `jax.jit`; and without JAX's dispatch."""
    flat = flatten(fun, args, kwargs)

    def of_arrays(*arrays: Any) -> list[Any]:
        return [x for x in jtu.tree_leaves(flat.call(*arrays)) if eqx.is_array(x)]

    jitted = jax.jit(of_arrays, keep_unused=True)
    calls: dict[str, Any] = {FLAT: functools.partial(jitted, *flat.arrays)}
    arrays = [jax.device_put(x) for x in flat.arrays]
    raw = raw_execute(jitted.lower(*arrays).compile(), arrays)
    return calls if raw is None else {**calls, RAW: raw}


def _stand_in(fun: Any, args: Any, kwargs: Any) -> Callable[..., Any]:
    """A function with the same arguments and results that computes nothing."""
    out = eqx.filter_eval_shape(fun, *args, **kwargs)

    def stand_in(fun: Any, *args: Any, **kwargs: Any) -> Any:
        return jtu.tree_map(_zeros, out)

    return stand_in


def _zeros(x: Any) -> Any:
    if not isinstance(x, jax.ShapeDtypeStruct):
        return x
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), x.shape)
    return jax.numpy.zeros(x.shape, x.dtype)


# --- pyinstrument ---------------------------------------------------------------------

# Frames that are grouped even if they are of a checkout; not those that name a part.
_LIBRARIES = "|".join(
    re.escape(os.path.dirname(os.path.abspath(module.__file__ or "")) + os.sep)
    for module in (eqx_fastjit, jax, eqx)
)


def _profiler() -> Any:
    from pyinstrument import Profiler

    return Profiler(interval=_INTERVAL, async_mode="disabled")


def tree_text(session: Any) -> str:
    """Pyinstrument's tree, with the frames of libraries grouped."""
    from pyinstrument.renderers import ConsoleRenderer

    class Tree(ConsoleRenderer):
        def render_preamble(self, session: Any) -> str:
            return ""  # a logo and a clock

    options = {"hide_regex": _LIBRARIES, "show_regex": re.escape(__file__)}
    text = Tree(unicode=True, processor_options=options).render(session)
    return (
        f"Where Python was, in seconds ({session.sample_count} samples)\n{text.strip()}"
    )


def tree_html(session: Any) -> str:
    """Pyinstrument's page."""
    from pyinstrument.renderers import HTMLRenderer

    return HTMLRenderer().render(session)
