"""`profile`: what a call costs, and where Python spends the time."""

# Of JAX's functions not all have types. A jitted function is called in other ways than
# a user calls it.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

import dataclasses
import functools
import importlib.util
import os
import time
from pathlib import Path
from typing import Any

from eqx_fastjit import _events
from eqx_fastjit._install import equinox_filter_jit
from eqx_fastjit._jit import filter_jit

from ._target import Target, target
from ._timing import time_call, time_calls, Timing
from ._words import show_seconds, table, wrapped


OURS, EQUINOX, FLAT = "eqx_fastjit", "equinox.filter_jit", "jax.jit, flat arrays"
# Seconds that the rounds of timing take, but for slow calls.
_TIMING_SECONDS = 4.0
# Seconds between two samples.
_INTERVAL = 1e-3
# The share of a call, or of a program, from which on a saving matters.
MATTERS = 0.05


@dataclasses.dataclass(frozen=True)
class Profile:
    """The result of `profile`. `str(profile)` is for people."""

    name: str
    # Of warm calls, by what jitted the function.
    timings: dict[str, Timing]
    # Seconds of each stage of a first call.
    stages: dict[str, float]
    # Of pyinstrument, of a first call.
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
            tree_text(self.session) if self.session else "",
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
    """Time warm calls under `eqx_fastjit`, Equinox and `jax.jit`; or profile a first.

    Warm calls are timed in interleaved rounds. For `jax.jit`, everything but the arrays
    is removed by hand. The function is called without donation.

    **Arguments:**

    - `f`: a function, jitted in any way or not.
    - `*args`, `**kwargs`: the arguments of the calls.
    - `first`: whether to profile a first call instead, which needs pyinstrument: the
        function is traced and compiled as if it were new, though functions inside it
        may have been traced.
    - `html`: a file, to which pyinstrument's page of a first call is written.

    **Returns:**

    A `Profile`: the timings of warm calls, or the stages of a first call and the tree
    of what Python did in its trace, with the frames of libraries grouped; and one
    sentence on what can be saved. Timing takes a few seconds, beyond compiling the
    function under both libraries.

    **Raises:**

    `TypeError` if `f` is not callable, `ImportError` without pyinstrument, `OSError`
    if the file cannot be written, and what the function raises.
    """
    it = target(f, args, kwargs)
    if not first:
        timings = measure(it.fun, it.args, it.kwargs)
        return Profile(it.name, timings, {}, None, _conclusion(timings))
    if importlib.util.find_spec("pyinstrument") is None:
        line = 'pip install "eqx_fastjit[profile]"'
        raise ImportError(f"profiling a first call needs pyinstrument: {line}")
    if html is not None:
        with open(html, "a"):  # say now that it cannot be written
            pass
    out = _profile_first(it)
    if html is not None:
        Path(html).write_text(tree_html(out.session), encoding="utf-8")
    return out


def _profile_first(it: Target) -> Profile:
    from pyinstrument import Profiler

    @functools.wraps(it.fun, updated=())
    def new(*args: Any, **kwargs: Any) -> Any:
        return it.fun(*args, **kwargs)

    jitted = filter_jit(new)
    profiler, clock = Profiler(interval=_INTERVAL, async_mode="disabled"), time.time
    times = [clock()]
    with profiler:
        traced = jitted.trace(*it.args, **it.kwargs)
    times.append(clock())
    lowered = traced.lower()
    times.append(clock())
    lowered.compile()
    times.append(clock())
    # What was traced for a profile alone is none of the program's events.
    for event in list(_events.history):
        if event.function is jitted._function.info:
            _events.history.remove(event)
    names = ("trace (Python)", "lower", "compile (XLA)")
    stages = {name: times[i + 1] - times[i] for i, name in enumerate(names)}
    total = show_seconds(sum(stages.values()))
    conclusion = (
        f"A first call takes {total} before it runs, of which eqx_fastjit saves "
        "nothing: JAX's persistent cache saves most of XLA's part in later processes, "
        "`f.export` saves tracing as well, and the tree shows which of your lines "
        "Python is slow in."
    )
    return Profile(it.name, {}, stages, profiler.last_session, conclusion)


def measure(
    fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Timing]:
    """Time warm calls of a function, jitted in each way."""
    jitted = filter_jit(fun)
    ours = functools.partial(jitted, *args, **kwargs)
    equinox = functools.partial(equinox_filter_jit(fun), *args, **kwargs)
    time_call(ours)
    time_call(equinox)
    # What `jax.jit` of the arrays alone takes: the program that `ours` has compiled.
    specialization, arrays = jitted._function.find(jitted._bind(*args, **kwargs))
    # To block on a Module, Python flattens it. So it does after a flat call as well:
    # that time is not overhead.
    result = ours()

    def flat() -> Any:
        return specialization.jitted(*arrays), result

    return time_calls({OURS: ours, FLAT: flat, EQUINOX: equinox}, _TIMING_SECONDS)


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
    saving, noise = ours.saves_over(timings[EQUINOX])
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


def tree_text(session: Any) -> str:
    """Pyinstrument's tree, with the frames of libraries grouped."""
    from pyinstrument.renderers import ConsoleRenderer

    class Tree(ConsoleRenderer):
        def render_preamble(self, session: Any) -> str:
            return ""  # a logo and a clock

    text = Tree(unicode=True).render(session).strip()
    return f"Where Python was, in seconds ({session.sample_count} samples)\n{text}"


def tree_html(session: Any) -> str:
    """Pyinstrument's page."""
    from pyinstrument.renderers import HTMLRenderer

    return HTMLRenderer().render(session)
