"""`profile`: what a call costs, and where Python spends the time."""

# Of JAX's functions not all have types. A jitted function is called in other ways than
# a user calls it.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

import dataclasses
import functools
import importlib.util
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from eqx_fastjit._install import equinox_filter_jit
from eqx_fastjit._jit import filter_jit

from ._events import forget, history
from ._shown import Shown
from ._target import Target, target
from ._timing import time_call, time_calls, Timing
from ._words import show_seconds, table, wrapped


OURS, EQUINOX, FLAT = "eqx_fastjit", "equinox.filter_jit", "jax.jit, flat arrays"
# Seconds that the rounds of timing take, but for slow calls.
TIMING_SECONDS = 4.0
# Seconds for which pyinstrument samples warm calls, and between two samples.
_SAMPLING_SECONDS, _INTERVAL = 1.0, 1e-3
# Of a function that takes this long to compile, Equinox's calls are not timed: they
# would compile it once more.
_LONG_COMPILATION = 8.0
# The share of a call, or of a program, from which on a saving matters.
MATTERS = 0.05


@dataclasses.dataclass(frozen=True, repr=False)
class Profile(Shown):
    """The result of `profile`. `str(profile)` is for people."""

    name: str
    # Of warm calls, by what jitted the function.
    timings: dict[str, Timing]
    # Seconds of each stage of a first call.
    stages: dict[str, float]
    # Of pyinstrument; `None` of warm calls where it is not installed.
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


def profile(
    f: Any,
    *args: Any,
    first: bool = False,
    html: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> Profile:
    """Time and profile warm calls under `eqx_fastjit`, Equinox and `jax.jit`.

    Warm calls are timed in interleaved rounds. For `jax.jit`, everything but the arrays
    is removed by hand. The function is called without donation.

    **Arguments:**

    - `f`: a function, jitted in any way or not.
    - `*args`, `**kwargs`: the arguments of the calls.
    - `first`: whether to profile a first call instead: the function is traced and
        compiled as if it were new, though functions inside it may have been traced.
    - `html`: a file, to which pyinstrument's page is written.

    **Returns:**

    A `Profile`: the timings of warm calls, or the stages of a first call; the tree that
    pyinstrument draws of what Python did, with the frames of libraries grouped; and one
    sentence on what can be saved. It takes a few seconds, beyond compiling the function
    under both libraries. If compiling takes long, it is not compiled under Equinox.

    **Raises:**

    `TypeError` if `f` is not callable, `ImportError` without pyinstrument if `first` or
    `html` is given, `OSError` if the file cannot be written, and what the function
    raises.
    """
    it = target(f, args, kwargs)
    has_pyinstrument = importlib.util.find_spec("pyinstrument") is not None
    if not has_pyinstrument and (first or html is not None):
        line = 'pip install "eqx_fastjit[profile]"'
        raise ImportError(f"this profile needs pyinstrument: {line}")
    if html is not None:
        with open(html, "a"):  # say now that it cannot be written
            pass
    out = _profile_first(it) if first else _profile_warm(it, has_pyinstrument)
    if html is not None:
        Path(html).write_text(tree_html(out.session), encoding="utf-8")
    return out


def _profiler() -> Any:
    from pyinstrument import Profiler

    return Profiler(interval=_INTERVAL, async_mode="disabled")


def _profile_first(it: Target) -> Profile:
    @functools.wraps(it.fun, updated=())
    def new(*args: Any, **kwargs: Any) -> Any:
        return it.fun(*args, **kwargs)

    jitted = filter_jit(new)
    with (profiler := _profiler()):
        traced = jitted.trace(*it.args, **it.kwargs)
    traced.lower().compile()
    info = jitted._function.info
    events = [e for e in history(info) if e.function is info]
    stages = {
        "trace (Python)": sum(e.trace for e in events),
        "lower": sum(e.lower for e in events),
        "compile (XLA)": sum(e.compile for e in events),
    }
    forget(info)
    total = show_seconds(sum(stages.values()))
    conclusion = (
        f"A first call takes {total} before it runs, of which eqx_fastjit saves "
        "nothing: JAX's persistent cache saves most of XLA's part in later processes, "
        "`f.export` saves tracing as well, and the tree shows which of your lines "
        "Python is slow in."
    )
    return Profile(it.name, {}, stages, profiler.last_session, conclusion)


def _profile_warm(it: Target, has_pyinstrument: bool) -> Profile:
    calls = contenders(it.fun, it.args, it.kwargs)
    timings = time_calls(calls, TIMING_SECONDS)
    session = None
    if has_pyinstrument:
        with (profiler := _profiler()):
            under_eqx_fastjit(calls[OURS])
            if EQUINOX in calls:
                under_equinox(calls[EQUINOX])
        session = profiler.last_session
    return Profile(it.name, timings, {}, session, _conclusion(timings))


def _repeat(call: Callable[[], Any]) -> None:
    end = time.perf_counter() + _SAMPLING_SECONDS
    while time.perf_counter() < end:
        jax.block_until_ready(call())


# Their names stand in the tree, with the calls below them.


def under_eqx_fastjit(call: Callable[[], Any]) -> None:
    _repeat(call)


def under_equinox(call: Callable[[], Any]) -> None:
    _repeat(call)


def contenders(
    fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Callable[[], Any]]:
    """Warm calls of a function, jitted in each way."""
    jitted = filter_jit(fun)
    ours = functools.partial(jitted, *args, **kwargs)
    _, first = time_call(ours)
    # What `jax.jit` of the arrays alone takes: the program that `ours` has compiled.
    function = jitted._function
    specialization, arrays, _ = function.find(jitted._bind(*args, **kwargs))
    # To block on a Module, Python flattens it. So it does after a flat call as well:
    # that time is not overhead.
    result = ours()

    def flat() -> Any:
        return specialization.jitted(*arrays), result

    out: dict[str, Callable[[], Any]] = {OURS: ours, FLAT: flat}
    # It may have been compiled before.
    events = history(function.info)
    known = [e.seconds for e in events if e.function is function.info]
    if max(first, *known, 0.0) < _LONG_COMPILATION:
        out[EQUINOX] = functools.partial(equinox_filter_jit(fun), *args, **kwargs)
        time_call(out[EQUINOX])
    return out


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
    if EQUINOX not in timings:
        return (
            f"{begin}; it was not timed under Equinox, because compiling it takes more "
            f"than {show_seconds(_LONG_COMPILATION)}."
        )
    saving, noise = ours.saves_over(timings[EQUINOX])
    saving = max(0.0, saving)
    share = saving / (ours.ready + saving)
    is_little = share < MATTERS or saving <= noise
    return (
        f"{begin}; it saves {show_seconds(saving)} (give or take "
        f"{show_seconds(noise)}) that `equinox.filter_jit` takes in addition "
        f"({share:.0%} of Equinox's call), so it "
        f"matters{' little' * is_little}: 10,000 calls save "
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
