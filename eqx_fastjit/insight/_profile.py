"""`profile`: what a call costs, and where Python spends the time."""

# Of JAX's functions not all have types. A jitted function is called in other ways than
# a user calls it.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

import dataclasses
import functools
import importlib.util
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from eqx_fastjit import _events
from eqx_fastjit._install import equinox_filter_jit
from eqx_fastjit._jit import filter_jit

from ._target import Target, target
from ._timing import LEAST_ROUNDS, time_call, time_calls, Timing
from ._words import show_seconds, table, wrapped


OURS, EQUINOX, FLAT = "eqx_fastjit", "equinox.filter_jit", "jax.jit, flat arrays"
# Seconds that a profile may take, beyond compiling the function once; of those, what
# the rounds of timing and the sampling of each function may.
_SECONDS, _TIMING_SECONDS, _SAMPLING_SECONDS = 20.0, 4.0, 1.0
# Seconds between two samples.
_INTERVAL = 1e-3
# The share of a call, or of a program, from which on a saving matters.
MATTERS = 0.05

_Calls = dict[str, Callable[[], Any]]


@dataclasses.dataclass(frozen=True)
class Profile:
    """The result of `profile`. `str(profile)` is for people."""

    name: str
    # Of warm calls, by what jitted the function. Equinox is not among them if compiling
    # the function once more would take too long.
    timings: dict[str, Timing]
    # Seconds of each stage of a first call.
    stages: dict[str, float]
    # Of pyinstrument.
    session: Any
    # One sentence: what the call costs, what of it can be saved, whether it matters.
    conclusion: str

    def __str__(self) -> str:
        warm = [
            (name, show_seconds(x.returns), show_seconds(x.ready))
            for name, x in self.timings.items()
        ]
        first = [(name, show_seconds(x)) for name, x in self.stages.items()]
        parts = [
            f"profile of {self.name}",
            table("A warm call", ("", "returns after", "result ready after"), warm),
            table("A first call", ("stage", "time"), first),
            tree_text(self.session),
            "\n".join(wrapped(self.conclusion)),
        ]
        return "\n\n".join(filter(None, parts))

    __repr__ = __str__


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

    A `Profile`, with timings, pyinstrument's tree with the frames of libraries grouped,
    and one sentence on what can be saved. This takes 20 s at most, beyond compiling the
    function once.

    **Raises:**

    `TypeError` if `f` is not callable, `ImportError` without pyinstrument, `OSError`
    if the file cannot be written, and what the function raises.
    """
    if importlib.util.find_spec("pyinstrument") is None:
        line = 'pip install "eqx_fastjit[profile]"'
        raise ImportError(f"`profile` needs pyinstrument: {line}")
    it = target(f)
    args, kwargs = it.complete(args, kwargs)
    if html is not None:
        with open(html, "a"):  # say now that it cannot be written
            pass
    out = (_profile_first if first else _profile_warm)(it, args, kwargs)
    if html is not None:
        Path(html).write_text(tree_html(out.session), encoding="utf-8")
    return out


def _profile_first(it: Target, args: Any, kwargs: Any) -> Profile:
    @functools.wraps(it.fun, updated=())
    def new(*args: Any, **kwargs: Any) -> Any:
        return it.fun(*args, **kwargs)

    jitted = filter_jit(new)
    profiler, clock = _profiler(), time.perf_counter
    start = clock()
    with profiler:
        traced = jitted.trace(*args, **kwargs)
    trace, start = clock() - start, clock()
    lowered = traced.lower()
    lower, start = clock() - start, clock()
    lowered.compile()
    compile_ = clock() - start
    _forget(jitted)
    stages = {"trace (Python)": trace, "lower": lower, "compile (XLA)": compile_}
    total = show_seconds(sum(stages.values()))
    conclusion = (
        f"A first call takes {total} before it runs, of which eqx_fastjit saves "
        "nothing: JAX's persistent cache saves most of XLA's part in later processes, "
        "`f.export` saves tracing as well, and the tree shows which of your lines "
        "Python is slow in."
    )
    return Profile(it.name, {}, stages, profiler.last_session, conclusion)


def _forget(jitted: Any) -> None:
    """What was traced for a profile alone is none of the program's events."""
    for event in list(_events.history):
        if event.function is jitted._function.info:
            _events.history.remove(event)


def _profile_warm(it: Target, args: Any, kwargs: Any) -> Profile:
    timings, calls = measure(it.fun, args, kwargs)
    profiler = _profiler()
    with profiler:
        for name, run in _SAMPLED.items():
            if name in calls:
                seconds = timings[name].ready
                run(calls[name], max(1, int(_SAMPLING_SECONDS / max(seconds, 1e-9))))
    return Profile(it.name, timings, {}, profiler.last_session, _conclusion(timings))


def _under_eqx_fastjit(call: Callable[[], Any], n: int) -> None:
    for _ in range(n):
        jax.block_until_ready(call())


def _under_equinox(call: Callable[[], Any], n: int) -> None:
    for _ in range(n):
        jax.block_until_ready(call())


# Their names stand in the tree, with the calls below them.
_SAMPLED = {OURS: _under_eqx_fastjit, EQUINOX: _under_equinox}


def measure(
    fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Timing], _Calls]:
    """Time warm calls of a function, jitted in each way. Returns the calls as well."""
    jitted = filter_jit(fun)
    ours = functools.partial(jitted, *args, **kwargs)
    _, first = time_call(ours)
    _, seconds = time_call(ours, 2)
    # What `jax.jit` of the arrays alone takes: the program that `ours` has compiled.
    function = jitted._function
    specialization, arrays = function.find(jitted._bind(*args, **kwargs))
    calls: _Calls = {
        OURS: ours,
        FLAT: functools.partial(specialization.jitted, *arrays),
    }
    own = (
        e.seconds for e in _events.history if e.function.key() == function.info.key()
    )
    left = _SECONDS - _TIMING_SECONDS - 2 * _SAMPLING_SECONDS
    if max(first, *own, 0.0) + 4 * LEAST_ROUNDS * seconds < left:
        equinox = equinox_filter_jit(fun)
        calls[EQUINOX] = functools.partial(equinox, *args, **kwargs)
        time_call(calls[EQUINOX])
    return time_calls(calls, _TIMING_SECONDS), calls


def saved(timings: dict[str, Timing]) -> tuple[float, float] | None:
    """What a call saves over Equinox's, if that was timed; and how exact that is."""
    return timings[OURS].saves_over(timings[EQUINOX]) if EQUINOX in timings else None


def _conclusion(timings: dict[str, Timing]) -> str:
    """What a call costs, what of it is saved, and whether that matters."""
    ours, flat = timings[OURS], timings[FLAT]
    overhead = max(0.0, flat.saves_over(ours)[0])
    begin = (
        f"A call takes {show_seconds(ours.ready)}: "
        f"{show_seconds(max(0.0, ours.ready - overhead))} are `jax.jit` and the "
        "program itself, which eqx_fastjit cannot save, "
        f"{show_seconds(overhead)} are its own overhead"
    )
    if (found := saved(timings)) is None:
        return f"{begin}; Equinox was not timed: compiling again would take too long."
    saving, noise = found
    if saving <= noise:
        return (
            f"{begin}; the difference from Equinox is within the noise of "
            f"{show_seconds(noise)}, so it does not matter for this function."
        )
    share = saving / (ours.ready + saving)
    return (
        f"{begin}; it saves {show_seconds(saving)} that `equinox.filter_jit` takes in "
        f"addition ({share:.0%} of Equinox's call), so it "
        f"matters{' little' * (share < MATTERS)}: 10,000 calls save "
        f"{show_seconds(1e4 * saving)}."
    )


# --- pyinstrument ---------------------------------------------------------------------


def _profiler() -> Any:
    from pyinstrument import Profiler

    return Profiler(interval=_INTERVAL, async_mode="disabled")


def tree_text(session: Any) -> str:
    """Pyinstrument's tree, with the frames of libraries grouped."""
    from pyinstrument.renderers import ConsoleRenderer

    class Tree(ConsoleRenderer):
        def render_preamble(self, session: Any) -> str:
            return ""  # a logo and a clock

    options = {"show_regex": re.escape(__file__)}
    text = Tree(unicode=True, processor_options=options).render(session).strip()
    return f"Where Python was, in seconds ({session.sample_count} samples)\n{text}"


def tree_html(session: Any) -> str:
    """Pyinstrument's page."""
    from pyinstrument.renderers import HTMLRenderer

    return HTMLRenderer().render(session)
