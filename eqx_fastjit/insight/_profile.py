"""`profile`: what a call costs, and where Python spends the time."""

# Of JAX's functions not all have types. A jitted function is called in other ways than
# a user calls it. Callables may be anything.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false
# pyright: reportUnknownLambdaType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportFunctionMemberAccess=false
# pyright: reportAttributeAccessIssue=false

import collections
import dataclasses
import functools
import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax

from eqx_fastjit._facts import is_users, Place
from eqx_fastjit._install import equinox_filter_jit
from eqx_fastjit._jit import filter_jit, JitWrapped

from ._equations import JAX
from ._events import history
from ._words import show_place, show_seconds, table, wrapped


OURS, EQUINOX, FLAT = "eqx_fastjit", "equinox.filter_jit", "jax.jit, flat arrays"
# Seconds that the rounds of timing take, but for slow calls.
TIMING_SECONDS = 4.0
# A round has several calls of one kind: a call that follows one of another kind takes
# longer, by a different amount for each kind.
_ROUND_SECONDS = 1e-3
_MOST_CALLS = 200
LEAST_ROUNDS, _MOST_ROUNDS = 3, 100
# Seconds for which pyinstrument samples warm calls, and between two samples.
_SAMPLING_SECONDS, _INTERVAL = 1.0, 1e-3
# The share of all samples from which on a frame is shown.
_LEAST_SHARE = 0.02
# Of a function that takes this long to compile, Equinox's calls are not timed: they
# would compile it once more.
_LONG_COMPILATION = 8.0
# The share of a call, or of a program, from which on a saving matters.
MATTERS = 0.05


@dataclasses.dataclass(frozen=True)
class Timing:
    """A call, in seconds: medians over the rounds."""

    # Until the call returns.
    returns: float
    # Until its result is ready.
    ready: float
    # The latter in each round, in the mean over its calls.
    rounds: tuple[float, ...]

    def saves_over(self, other: "Timing") -> tuple[float, float]:
        """By how much a call is shorter than another, and how exact that is.

        **Returns:** the median over rounds, and about its 95% confidence interval:
        interquartile range over the square root of the number of rounds.
        """
        saved = [b - a for a, b in zip(self.rounds, other.rounds, strict=True)]
        low, median, high = statistics.quantiles(saved, n=4, method="inclusive")
        return median, (high - low) / len(saved) ** 0.5


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
            (name, show_seconds(x.returns), show_seconds(x.ready))
            for name, x in self.timings.items()
        ]
        parts = [
            f"profile of {self.name}",
            table("A warm call", ("", "returns after", "result ready after"), warm),
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
    draws of what Python did under each of them, and one sentence on what can be saved.
    It takes a few seconds, beyond compiling the function under both libraries. If
    compiling takes long, it is not compiled under Equinox.

    **Raises:**

    `TypeError` if `f` is not callable, and what the function raises.
    """
    it = target(f, args, kwargs)
    calls = contenders(it.fun, it.args, it.kwargs)
    timings = time_calls(calls, TIMING_SECONDS)
    has_pyinstrument = importlib.util.find_spec("pyinstrument") is not None
    session = _sampled(calls) if has_pyinstrument else None
    return Profile(it.name, timings, session, _conclusion(timings))


def _sampled(calls: dict[str, Callable[[], Any]]) -> Any:
    """Pyinstrument's session of warm calls, of each jit below its name."""
    from pyinstrument import Profiler

    found: list[Any] = []
    for name, call in calls.items():
        with Profiler(interval=_INTERVAL, async_mode="disabled") as profiler:
            end = time.perf_counter() + _SAMPLING_SECONDS
            while time.perf_counter() < end:
                jax.block_until_ready(call())
        found.append(_below(profiler.last_session, "warm calls", name))
    return functools.reduce(lambda a, b: type(a).combine(a, b), found)


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
    if isinstance(f, eqx.Partial | functools.partial):  # or a bound method
        f, args, kwargs = f.func, (*f.args, *args), {**f.keywords, **kwargs}
    elif hasattr(f, "__func__"):
        f, args = f.__func__, (f.__self__, *args)
    fun = f.__wrapped__ if isinstance(f, _JITTED) else f
    jitted = f if isinstance(f, JitWrapped | _JAX_JIT) else filter_jit(fun)
    name = getattr(fun, "__name__", type(fun).__name__)
    return Target(str(name), fun, jitted, args, kwargs)


def contenders(
    fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Callable[[], Any]]:
    """Warm calls of a function, jitted in each way."""
    jitted = filter_jit(fun)
    ours = functools.partial(jitted, *args, **kwargs)
    time_call(ours)
    # What `jax.jit` of the arrays alone takes: the program that `ours` has compiled.
    function = jitted._function
    _, specialization, arrays = function.specialization_for(
        jitted._bind(*args, **kwargs)
    )
    # To block on a Module, Python flattens it. So it does after a flat call as well:
    # that time is not overhead.
    result = ours()

    def flat() -> Any:
        return specialization.jitted(*arrays), result

    out: dict[str, Callable[[], Any]] = {OURS: ours, FLAT: flat}
    # Now, or before.
    took = max((e.seconds for e in history(function.info)), default=0.0)
    if took < _LONG_COMPILATION:
        out[EQUINOX] = functools.partial(equinox_filter_jit(fun), *args, **kwargs)
        time_call(out[EQUINOX])
    return out


def _conclusion(timings: dict[str, Timing]) -> str:
    """What a call costs, what of it is saved, and whether that matters."""
    ours, flat = timings[OURS], timings[FLAT]
    begin = (
        f"A call takes {show_seconds(ours.ready)}, where `jax.jit` of flat arrays "
        f"takes {show_seconds(flat.ready)}"
    )
    if EQUINOX not in timings:
        return (
            f"{begin}; it was not timed under Equinox, because compiling it takes more "
            f"than {show_seconds(_LONG_COMPILATION)}."
        )
    theirs = timings[EQUINOX]
    saving, noise = ours.saves_over(theirs)
    saving = max(0.0, saving)
    is_little = saving < MATTERS * theirs.ready or saving <= noise
    return (
        f"{begin}, and `equinox.filter_jit` {show_seconds(theirs.ready)}: it saves "
        f"{show_seconds(saving)} ({saving / theirs.ready:.0%} of Equinox's call, give "
        f"or take {show_seconds(noise)}), so it matters{' little' * is_little}: 10,000 "
        f"calls save {show_seconds(1e4 * saving)}."
    )


# --- timing, in interleaved rounds, so that what disturbs one disturbs all ------------


def time_calls(
    calls: dict[str, Callable[[], Any]], seconds: float
) -> dict[str, Timing]:
    """Time calls that have been compiled.

    **Arguments:**

    - `calls`: by name. Each is made until its result is ready before the next begins.
    - `seconds`: how long to go on, but for the least number of rounds.
    """
    counts: dict[str, int] = {}
    for name, call in calls.items():
        n = int(_ROUND_SECONDS / max(time_call(call)[1], 1e-9))
        counts[name] = max(1, min(_MOST_CALLS, n))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    for done in range(_MOST_ROUNDS):
        if done >= LEAST_ROUNDS and time.perf_counter() > end:
            break
        for name, call in calls.items():
            found[name].append(time_call(call, counts[name]))
    out: dict[str, Timing] = {}
    for name, rounds in found.items():
        returns, ready = zip(*rounds, strict=True)
        out[name] = Timing(statistics.median(returns), statistics.median(ready), ready)
    return out


def time_call(call: Callable[[], Any], n: int = 1) -> tuple[float, float]:
    """Seconds until a call returns, and until its result is ready."""
    clock, block = time.perf_counter, jax.block_until_ready
    returns = ready = 0.0
    for _ in range(n):
        start = clock()
        out = call()
        returned = clock()
        block(out)
        returns += returned - start
        ready += clock() - start
    return returns / n, ready / n


# --- pyinstrument ---------------------------------------------------------------------


# Frames of these are none of the program's.
_HERE = Path(__file__).parents[1]
_OWN = (str(_HERE / "cli"), str(_HERE / "insight"), "<frozen runpy")


def _below(session: Any, *names: str) -> Any:
    """A session with the frames below those of this library, under other names."""
    records: list[Any] = []
    for stack, seconds in session.frame_records:
        is_own = [frame.split("\0")[1].startswith(_OWN) for frame in stack]
        begins = is_own.index(True) if True in is_own else 0
        rest = [x for x, own in zip(stack, is_own, strict=True) if not own][begins:]
        # As pyinstrument writes a frame.
        records.append(([*(f"{name}\0\0000" for name in names), *rest], seconds))
    session.frame_records = records
    return session


# In these, a function is traced, compiled or run as a whole.
_JITTING = (
    *(f"jax{os.sep}_src{os.sep}pjit.py", f"equinox{os.sep}_jit.py"),
    f"eqx_fastjit{os.sep}",
)


def of_program(session: Any) -> tuple[Any, str]:
    """A session without the frames of the command that ran the program.

    **Returns:** the session, in which operations outside of jit are marked, and a
    sentence on these, if there are any.
    """
    found = collections.Counter[str]()
    for stack, seconds in session.frame_records:
        i = _operation_at(stack)
        if i is not None:
            name, rest = stack[i].split("\0", 1)
            stack[i] = f"{name} (outside of jit)\0{rest}"
            function, file, line, *_ = stack[i - 1].split("\0")
            place = show_place(Place(file, int(line.partition("\x01")[0]), function))
            found[f"{function} ({place})"] += seconds  # pyright: ignore
    text = ""
    for most, _ in found.most_common(1):
        took = show_seconds(found.total())
        text = f"Operations outside of jit ran for about {took}, most of it in {most}."
    return _below(session, "the program"), text


_READS = ("_value", "block_until_ready", "device_get", "item", "__float__")


def _operation_at(stack: list[str]) -> int | None:
    """Where in a stack an operation of JAX is, if that is outside of jit."""
    files = [frame.split("\0")[1] for frame in stack]
    users = [i for i, x in enumerate(files) if x and is_users(x)]
    if not users or (i := users[-1] + 1) == len(files):
        return None
    is_other = not files[i].startswith(JAX[0])
    is_read = stack[i].split("\0")[0].endswith(_READS)
    # The command, which runs the program, is this library, too.
    program = (x for x in files[: i + 1] if not x.startswith(_OWN[0]))
    is_jit = any(x in file for file in program for x in _JITTING)
    return None if is_other or is_read or is_jit else i


def tree_text(session: Any, *, show_all: bool = False) -> str:
    """Pyinstrument's tree: of all frames, or with those of libraries grouped."""
    from pyinstrument.processors import group_library_frames_processor
    from pyinstrument.renderers import ConsoleRenderer

    options = {"filter_threshold": _LEAST_SHARE}
    tree = ConsoleRenderer(unicode=True, processor_options=options)
    tree.render_preamble = lambda session: ""  # a logo and a clock
    if show_all:
        tree.processors.remove(group_library_frames_processor)
    lines = map(str.rstrip, tree.render(session).strip().split("\n"))
    text = "\n".join(lines)
    return f"Where Python was, in seconds ({session.sample_count} samples)\n{text}"
