"""Hints: what would save time although nothing is wrong. They never fail a run.

Each has a threshold in seconds, so fast programs have none.
"""

import collections
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from eqx_fastjit._export import LOADING
from eqx_fastjit._units import plural, show_seconds

from ._plain import Compile
from ._report import at, grouped, Hint, TimeSpent
from ._sites import is_library
from ._watch import Seen, Watch


# The seconds to be saved, and their share of the run, that make a change worthwhile.
_CACHE = 5.0, 0.2
_EXPORT = 3.0, 0.1
_SCAN = 3.0, 0.1
_RAGGED = 1.0, 0.02
_EAGER = 3.0, 0.2
# Different operations that one line compiles. (One that it compiles again and again is
# a finding.)
_OPERATIONS = 10
# Layers in a Python loop that make a scan worthwhile. Many more are unrolled-loop.
_LAYERS = 4
# Reading a compiled program takes at most this share of the time to compile it.
_READING = 0.1


def make_hints(watch: Watch, time: TimeSpent, unrolled: set[Any]) -> tuple[Hint, ...]:
    """Look for what would help; `unrolled` are the loops that are findings already."""
    seen = sorted(watch.seen.values(), key=lambda s: s.trace.number)
    run = _Run(time.seconds, watch.share)
    hints = [
        *_cache(watch, run),
        *_export(seen, run),
        *_layers(seen, run, unrolled),
        *_ragged(seen, run),
        *_eager(time, run),
        *_eager_compiles(tuple(watch.plain.compiles), run),
    ]
    return tuple(sorted(hints, key=lambda hint: -hint.seconds))


class _Run(NamedTuple):
    """How long the program ran, and for what share of that it had a processor."""

    seconds: float
    share: float = 1.0

    def is_worth(self, seconds: float, least: tuple[float, float]) -> bool:
        """Whether it pays to save so many seconds of it."""
        return seconds * self.share >= least[0] and seconds >= least[1] * self.seconds


# --- the persistent cache ------------------------------------------------------------


def _cache(watch: Watch, run: _Run) -> Iterator[Hint]:
    if watch.cache_directory is not None:
        return
    seen = tuple(watch.seen.values())
    # JAX does not cache programs with host callbacks. Only the first traces of a
    # function are inspected, and the others are like them.
    callers = {s.trace.key() for s in seen if s.calls_host}
    compiled = [
        *[s.trace.compile for s in seen if s.trace.key() not in callers],
        *[c.compile for c in tuple(watch.plain.compiles)],
    ]
    total = sum(compiled)
    if total > run.seconds:  # in several threads at once
        compiled = [x * run.seconds / total for x in compiled]
    kept = (1 - _READING) * sum(x for x in compiled if x >= watch.cache_seconds)
    saved = (1 - _READING) * sum(compiled)
    if not run.is_worth(saved, _CACHE):
        return
    fix = "Set `JAX_COMPILATION_CACHE_DIR` to a persistent directory"
    if kept < 0.8 * saved:
        fix += (
            ", and `JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0`, because most "
            f"compilations took less than {watch.cache_seconds:g} s, and are not kept "
            "by default"
        )
    aside = ", programs with host callbacks aside, which JAX does not keep"
    but = aside if callers else ""
    yield Hint(
        kind="persistent-cache",
        function="",
        **at(None),
        seconds=saved,
        message=f"XLA's compiler ran for {show_seconds(sum(compiled))} of "
        f"{show_seconds(run.seconds)}{but}. With JAX's persistent cache, a second run "
        f"would take about {show_seconds(run.seconds - saved)}",
        fix=f"{fix}.",
    )


# --- exporting -----------------------------------------------------------------------


def _export(seen: list[Seen], run: _Run) -> Iterator[Hint]:
    """What each process traces and lowers again, even with a persistent cache."""
    first: dict[Any, Seen] = {}
    for s in seen:
        trace, place = s.trace, s.trace.function.place
        if trace.inlined or trace.failed or trace.ahead or s.calls_host:
            continue
        if place is not None and not is_library(place.file):
            # Later traces are findings, if they are too many.
            first.setdefault(trace.key(), s)
    by_cost = sorted(first.values(), key=lambda s: -_front(s))
    front = sum(map(_front, by_cost))
    saved = (1 - LOADING) * front
    if not by_cost or not run.is_worth(saved, _EXPORT):
        return
    s, *others = by_cost
    name = s.trace.function.qualname
    names = f"{name} and {plural(len(others), 'other function')}" if others else name
    compiling = sum(s.trace.compile for s in by_cost)
    yield Hint(
        kind="export",
        function=name,
        **at(s.site),
        seconds=saved,
        message=f"tracing and lowering {names} took {show_seconds(front)}. This is "
        "repeated in each process, even with a persistent cache. If they were loaded "
        "from a file with native code, nothing would be compiled either, and the first "
        f"calls would take about {show_seconds(LOADING * (front + compiling))}",
        fix="Save it with `f.export(...).save(path, compiled=True)`, and call "
        "`eqx_fastjit.load(path, trusted=True)`.",
    )


def _front(s: Seen) -> float:
    return s.trace.trace + s.trace.lower


# --- layers that are alike -----------------------------------------------------------


def _layers(seen: list[Seen], run: _Run, unrolled: set[Any]) -> Iterator[Hint]:
    # By line of the loop: the trace, the loop in it, and the seconds to be saved.
    found: dict[Any, list[tuple[Seen, Any, float]]] = collections.defaultdict(list)
    for s in seen:
        if s.inspection is None or not s.inspection.equations:
            continue
        compiling = s.trace.trace + s.trace.lower + s.trace.compile
        for loop in s.inspection.loops:
            if loop.iterations < _LAYERS or not loop.uniform or is_library(loop.file):
                continue
            saved = loop.equations - loop.scan_equations
            seconds = compiling * saved / s.inspection.equations
            found[loop.file, loop.line].append((s, loop, seconds))
    for key, group in found.items():
        seconds = sum(x for _, _, x in group)
        if key in unrolled or not run.is_worth(seconds, _SCAN):
            continue
        s, loop, _ = max(group, key=lambda layers: layers[2])
        name = s.trace.function.qualname
        yield Hint(
            kind="scan-layers",
            function=name,
            **at(loop),
            seconds=seconds,
            message=f"the {loop.iterations} iterations of this loop are alike, and "
            f"have {loop.equations} of the {s.inspection and s.inspection.equations} "
            f"equations of {name}. With `jax.lax.scan`, the body would be compiled "
            f"once, which would save about {show_seconds(seconds)} (estimated from the "
            "number of equations)",
            fix="Create the layers with `eqx.filter_vmap` over their keys, which "
            "stacks their arrays, and iterate over them with `jax.lax.scan`.",
        )


# --- a ragged last batch -------------------------------------------------------------


def _ragged(seen: list[Seen], run: _Run) -> Iterator[Hint]:
    """Calls with a batch and a smaller one, whatever else differs between them."""
    whole = [s for s in seen if not s.trace.inlined and not s.trace.failed]
    for group in grouped(whole, lambda s: (s.trace.key(), s.site)).values():
        found = list(_smaller_batches(group))
        seconds = sum(s.trace.seconds for s, _, _ in found)
        # A third size is a finding instead: shape-churn.
        is_one = len({sizes[:2] for _, _, sizes in found}) == 1
        if not is_one or not run.is_worth(seconds, _RAGGED):
            continue
        s, earlier, (large, small, leaf) = found[0]
        name = s.trace.function.qualname
        others = _other_causes(earlier, s)
        hidden = f" (hidden by another cause: {others})" if others else ""
        yield Hint(
            kind="ragged-batch",
            function=name,
            **at(s.site),
            seconds=seconds,
            message=f"the call has batches of {large}, and one of {small} (`{leaf}`), "
            f"for which {name} was compiled again{hidden}",
            fix="Drop the last batch (`drop_last`). Under BatchNorm, nothing else is "
            f"right. Otherwise you may pad it to {large}, if you also pass its true "
            "size, as an array, and mask by it wherever the batch is read.",
        )


_Shapes = dict[str, tuple[int, ...]]


# The sizes of a batch in two traces, and the first leaf that has it.
_Batches = tuple[int, int, str]


def _smaller_batches(group: list[Seen]) -> Iterator[tuple[Seen, Seen, _Batches]]:
    """Traces for a smaller batch than an earlier one, with that, and the sizes.

    The shapes of the two traces differ only in the leading dimension of some arrays,
    which is the same number for all of them.
    """
    shapes = [_shapes(s) for s in group]
    for i, s in enumerate(group):
        for j in reversed(range(i)):
            pair = _batches(shapes[j], shapes[i])
            if pair is not None and pair[0] > pair[1]:
                yield s, group[j], pair
                break


def _shapes(s: Seen) -> _Shapes:
    texts = ((path, facets["shape"]) for path, facets in s.arrays.items())
    return {path: tuple(map(int, re.findall(r"\d+", text))) for path, text in texts}


def _batches(old: _Shapes, new: _Shapes) -> _Batches | None:
    """Both sizes of the batch and the first leaf, if that is how the shapes differ."""
    pairs = [(old.get(path, shape), shape, path) for path, shape in new.items()]
    changed = [pair for pair in pairs if pair[0] != pair[1]]
    if any(not a or not b or a[1:] != b[1:] for a, b, _ in changed):
        return None
    sizes = {(a[0], b[0]) for a, b, _ in changed}
    return (*sizes.pop(), changed[0][2]) if len(sizes) == 1 else None


def _other_causes(old: Seen, new: Seen) -> str:
    from eqx_fastjit.insight._differences import differences

    found = differences(old.trace, new.trace)
    return next((str(d) for d in found if d.what != "shape"), "")


# --- outside of jit ------------------------------------------------------------------

_MOVE = "Move them into a jitted function, such as the one that uses their results."


def _eager(time: TimeSpent, run: _Run) -> Iterator[Hint]:
    for part in time.parts:
        if part.name != "eager" or not run.is_worth(part.seconds, _EAGER):
            continue
        line = part.lines[0] if part.lines else None
        where = "" if line is None else f", {show_seconds(line.seconds)} of that here"
        cost = show_seconds(part.seconds)
        yield Hint(
            kind="eager-operations",
            function="",
            **at(line),
            seconds=part.seconds,
            message=f"JAX operations outside of jit took {cost}{where}: each is a "
            "separate program, with the overhead of a call",
            fix=_MOVE,
        )


def _eager_compiles(compiles: tuple[Compile, ...], run: _Run) -> Iterator[Hint]:
    eager = [c for c in compiles if c.miss is None and c.site is not None]
    for line, group in grouped(eager, lambda c: c.site).items():
        seconds, n = sum(c.seconds for c in group), len({c.name for c in group})
        if n < _OPERATIONS or not run.is_worth(seconds, _EAGER):
            continue
        yield Hint(
            kind="eager-operations",
            function="",
            **at(line),
            seconds=seconds,
            message=f"{n} JAX operations outside of jit took {show_seconds(seconds)} "
            "to compile here: each is a separate program",
            fix=_MOVE,
        )
