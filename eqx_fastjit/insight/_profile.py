"""`profile`: what a call costs, and where Python spends the time."""

# Of JAX's functions not all have types. A jitted function is called in other ways than
# a user calls it.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false, reportFunctionMemberAccess=false

import dataclasses
import functools
import importlib.util
import re
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax

from eqx_fastjit._install import equinox_filter_jit
from eqx_fastjit._jit import filter_jit, JitWrapped

from ._words import show_seconds, wrapped
from .record._equations import JAX
from .record._timing import time_calls, Timing


OURS, EQUINOX, FLAT = "eqx_fastjit", "equinox.filter_jit", "jax.jit, flat arrays"
# Seconds that timing takes.
_TIMING_SECONDS = 2.0
# Seconds for which pyinstrument samples warm calls, and between two samples.
_SAMPLING_SECONDS, _INTERVAL = 1.0, 1e-3
# The share of a call from which on a saving matters.
_MATTERS = 0.05


@dataclasses.dataclass(frozen=True, repr=False)
class Profile:
    """The result of `profile`. `str(profile)` is for people.

    **Fields:**

    - `name`: of the function.
    - `timings`: of warm calls, by what jitted the function: seconds until the call
        returns (`returns`), and until its result is ready (`ready`).
    - `session`: of pyinstrument; `None` where it is not installed.
    - `conclusion`: what the call costs, what of it can be saved, whether it matters.
    """

    name: str
    timings: dict[str, Timing]
    session: Any
    conclusion: str

    def __str__(self) -> str:
        warm = [
            f"  {name:<21} returns after {show_seconds(x.returns):>7}, "
            f"result ready after {show_seconds(x.ready):>7}"
            for name, x in self.timings.items()
        ]
        parts = [
            f"profile of {self.name}",
            "\n".join(["A warm call", *warm]),
            tree_text(self.session, show_all=True) if self.session else "",
            "\n".join(wrapped(self.conclusion)),
        ]
        return "\n\n".join(filter(None, parts))

    __repr__ = __str__


def profile(f: Any, *args: Any, **kwargs: Any) -> Profile:
    """Time and profile warm calls under `eqx_fastjit`, Equinox and `jax.jit`.

    Warm calls are timed in interleaved rounds. For `jax.jit`, everything but the arrays
    is removed by hand. The function is called without donation.

    **Arguments:**

    - `f`: a function, jitted in any way or not.
    - `*args`, `**kwargs`: the arguments of the calls.

    **Returns:**

    A `Profile`: the timings of warm calls, the tree that pyinstrument (if installed)
    draws of what Python did in those under `eqx_fastjit`, and one sentence on what is
    saved. It takes a few seconds, or some fifteen calls, beyond compiling the function
    under both libraries.

    **Raises:**

    `TypeError` if `f` is not callable, and what the function raises.
    """
    it = target(f, args, kwargs)
    calls = _contenders(it)
    timings = time_calls(calls, _TIMING_SECONDS)
    has_pyinstrument = importlib.util.find_spec("pyinstrument") is not None
    session = _sampled(calls[OURS]) if has_pyinstrument else None
    return Profile(it.name, timings, session, _conclusion(timings))


# --- what is called -------------------------------------------------------------------


_JAX_JIT: Any = type(jax.jit(lambda: None))
_JITTED: Any = (JitWrapped, _JAX_JIT, type(equinox_filter_jit(lambda: None)))


class Target(NamedTuple):
    """A call of a function, as the user gave it."""

    name: str
    # Without jit.
    fun: Callable[..., Any]
    # The same under this library, or as it is if it is of `jax.jit`.
    jitted: Any
    # With those that a bound method puts before the others.
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def target(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Target:
    """The target of a call. Raises `TypeError` for what cannot be called."""
    if not callable(f):
        raise TypeError(f"expected a function, jitted or not; got a {type(f).__name__}")
    if isinstance(f, eqx.Partial | functools.partial):  # or a jitted method, bound
        return target(f.func, (*f.args, *args), {**f.keywords, **kwargs})
    if hasattr(f, "__func__"):
        return target(f.__func__, (f.__self__, *args), kwargs)
    fun = f.__wrapped__ if isinstance(f, _JITTED) else f
    jitted = f if isinstance(f, JitWrapped | _JAX_JIT) else filter_jit(fun)
    name = getattr(fun, "__name__", type(fun).__name__)
    return Target(str(name), fun, jitted, args, kwargs)


def _contenders(it: Target) -> dict[str, Callable[[], Any]]:
    """Calls of a function, jitted in each way, which have been compiled."""
    jitted = filter_jit(it.fun)
    ours = functools.partial(jitted, *it.args, **it.kwargs)
    theirs = functools.partial(equinox_filter_jit(it.fun), *it.args, **it.kwargs)
    # To block on a Module, Python flattens it. So it does after a flat call as well:
    # that time is not overhead.
    result, _ = ours(), theirs()
    # What `jax.jit` of the arrays alone takes: the program that `ours` has compiled.
    bound = jitted._bind(*it.args, **it.kwargs)
    _, specialization, arrays = jitted._function.specialization_for(bound)
    return {
        OURS: ours,
        FLAT: lambda: (specialization.jitted(*arrays), result),
        EQUINOX: theirs,
    }


def _conclusion(timings: dict[str, Timing]) -> str:
    """What a call costs, what of it is saved, and whether that matters."""
    ours, flat, theirs = timings[OURS], timings[FLAT], timings[EQUINOX]
    saved = [b - a for a, b in zip(ours.rounds, theirs.rounds, strict=True)]
    low, saving, high = statistics.quantiles(saved, n=4, method="inclusive")
    is_little = low < _MATTERS * theirs.ready
    return (
        f"A call takes {show_seconds(ours.ready)}, where `jax.jit` of flat arrays "
        f"takes {show_seconds(flat.ready)}, and `equinox.filter_jit` "
        f"{show_seconds(theirs.ready)}: it saves {show_seconds(saving)} "
        f"({saving / theirs.ready:.0%} of Equinox's call; {show_seconds(low)} to "
        f"{show_seconds(high)} in half of the rounds), so it matters"
        f"{' little' * is_little}."
    )


# --- pyinstrument ---------------------------------------------------------------------


def _sampled(call: Callable[[], Any]) -> Any:
    """Pyinstrument's session of calls."""
    from pyinstrument import Profiler

    with Profiler(interval=_INTERVAL, async_mode="disabled") as profiler:
        end = time.perf_counter() + _SAMPLING_SECONDS
        while time.perf_counter() < end:
            jax.block_until_ready(call())
    return profiler.last_session


def tree_text(session: Any, *, show_all: bool = False) -> str:
    """Pyinstrument's tree: of all frames, or with those of libraries grouped."""
    from pyinstrument.processors import group_library_frames_processor
    from pyinstrument.renderers import ConsoleRenderer

    # Frames of a fiftieth of the samples are shown. Those of this library, whose folder
    # may be a checkout, are grouped as others of libraries are.
    options = {"filter_threshold": 0.02, "hide_regex": re.escape(JAX[1])}
    tree = ConsoleRenderer(unicode=True, processor_options=options)
    tree.render_preamble = lambda session: ""  # a logo and a clock
    if show_all:
        tree.processors.remove(group_library_frames_processor)
    text = re.sub(" +$", "", tree.render(session).strip(), flags=re.M)
    return f"Where Python was, in seconds ({session.sample_count} samples)\n{text}"
