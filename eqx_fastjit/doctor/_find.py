"""Makes the findings of a report from what was seen.

Each threshold has its reason beside it. Behind all of them is one rule: a program that
is meant to compile for a few shapes, modes or dtypes has no finding.
"""

import collections
import linecache
import re
import time
from collections.abc import Iterator
from typing import Any, TYPE_CHECKING

from eqx_fastjit._units import plural, show_seconds

from ._blocked import blocking
from ._causes import (
    churn,
    function_name,
    function_place,
    line_of,
    our_causes,
    plain_causes,
    severity,
)
from ._hints import make_hints
from ._outside import outside_of_jit
from ._plain import Compile
from ._report import at, Finding, grouped, Report
from ._rows import make_compilations, rows
from ._sites import is_library, Line
from ._time import time_spent
from ._watch import Deviation, Seen, Watch


if TYPE_CHECKING:
    from eqx_fastjit._record import Trace

# In seconds. Large models take up to this long on any machine. `--slow` changes it.
SLOW = 60.0

# A dozen layers in a Python loop compile fast enough, as do fewer equations. A loop
# that is a small part of a function does not make it slow.
_ITERATIONS = 20
_LOOP_EQUATIONS = 300
_LOOP_SHARE = 0.3
# Calling a block for each of a dozen layers, by hand, is fine.
_CALL_SITES = 16
# A program that has a processor for less than this share of its time takes twice as
# long as it would alone.
_BUSY = 0.5
# In bytes. Tables of positions or filters may be constants, but data sets should not.
_LARGE_CONSTANT = 4 << 20


def make_report(
    watch: Watch, program: str, exit_code: int | None, *, slow: float | None = None
) -> Report:
    """Look through what was seen of a program, which has no exit code while it runs.

    A first call that compiles for more than `slow` seconds is a finding. By default
    that is a minute, and as much longer as the machine did something else.
    """
    if slow is None:
        slow = SLOW / watch.share
    seen = sorted(watch.seen.values(), key=lambda s: s.trace.number)
    plain = list(watch.plain.compiles)
    causes = [*(our_causes(seen) if seen else ()), *plain_causes(plain, seen)]
    total = watch.so_far()
    findings = [
        *churn(causes, total),
        *_slow_first_calls(seen, plain, slow, total),
        *outside_of_jit(plain, total, watch.share),
        *_traced(seen, total),
        *_stale(watch),
        *_numerics(seen),
        *blocking(tuple(watch.waits.by_call.values()), seen, total),
    ]
    spent = time_spent(watch)
    unrolled = {(f.file, f.line) for f in findings if f.kind == "unrolled-loop"}
    return Report(
        program=program,
        exit_code=exit_code,
        seconds=total,
        findings=tuple(sorted(findings, key=_importance)),
        functions=tuple(rows(seen, plain)),
        compilations=make_compilations(seen, plain, watch.started),
        notes=tuple(_notes(watch)),
        hints=make_hints(watch, spent, unrolled),
        time=spent,
    )


_SEVERITIES = ("high", "medium", "low")


def _importance(f: Finding) -> Any:
    order = _SEVERITIES.index(f.severity), -(f.seconds or 0)
    return *order, f.kind, f.file or "", f.line or 0


# --- first calls ---------------------------------------------------------------------


def _slow_first_calls(
    ours: list[Seen], plain: list[Compile], slow: float, total: float
) -> Iterator[Finding]:
    first: list[tuple[Trace | Compile, Line | None, str, Line | None]] = [
        (s.trace, s.site, function_name(s.trace), function_place(s.trace))
        for s in ours
        if s.explanation is None and not (s.trace.inlined or s.trace.failed)
    ]
    first += [
        (c, c.site, c.name, c.miss and c.miss.place)
        for c in plain
        if c.miss is None or c.miss.kind == "first-call"
    ]
    for t, site, function, place in first:
        seconds = t.trace + t.lower + t.compile
        if seconds < slow:
            continue
        fix = (
            "Fewer equations take less time: use `jax.lax.scan` for repeated layers "
            "and steps, and one call under `jax.vmap` in place of many."
        )
        if t.trace >= seconds / 2:
            fix += " Most of it was Python: look for other work in the function, too."
        elif t.compile >= seconds / 2:
            fix += (
                " Most of it was XLA's compiler: to keep compiled programs between "
                "runs, set `jax_compilation_cache_dir` (`eqx-fastjit lock "
                "--precompile` fills it)."
            )
        yield Finding(
            kind="slow-first-call",
            severity=severity(seconds, total),
            function=function,
            **at(place or site),
            seconds=seconds,
            message=f"the first call, at {site or '?'}, spent {t.trace:.2f} s tracing, "
            f"{t.lower:.2f} s lowering and {t.compile:.2f} s in XLA's compiler",
            fix=fix,
        )


# --- what is in the traces -----------------------------------------------------------


def _traced(seen: list[Seen], total: float) -> Iterator[Finding]:
    known = [(s, s.inspection) for s in seen if s.inspection is not None]
    found = [finding for pair in known for finding in _in_trace(*pair, total)]
    # All traces of a function find the same, so only use the most expensive one.
    for same in grouped(found, lambda f: (f.kind, f.file, f.line, f.leaf)).values():
        yield max(same, key=lambda f: f.seconds or 0)


def _in_trace(s: Seen, inspection: Any, total: float) -> Iterator[Finding]:
    name = function_name(s.trace)
    compiling = s.trace.trace + s.trace.lower + s.trace.compile
    loops = [x for x in inspection.loops if _is_unrolled(x, inspection.equations)]
    for loop in loops:
        saved = loop.equations - loop.scan_equations
        seconds = compiling * saved / inspection.equations
        yield Finding(
            kind="unrolled-loop",
            severity=severity(seconds, total),
            function=name,
            **at(loop),
            seconds=seconds,
            count=loop.iterations,
            message=f"an unrolled Python loop of {loop.iterations} iterations has "
            f"{loop.equations} of the {inspection.equations} equations of {name}; a "
            f"scan would have about {loop.scan_equations}. The time lost is an "
            "estimate",
            fix=_loop_fix(loop),
        )
    for x in () if loops else inspection.inlined:
        if _is_inlined(x, inspection.equations):
            saved = x.equations * (x.calls - 1) / x.calls
            seconds = compiling * saved / inspection.equations
            yield Finding(
                kind="inlined-function",
                severity=severity(seconds, total),
                function=x.name,
                **at(x),
                seconds=seconds,
                count=x.calls,
                message=f"{x.name} is called from {x.call_sites} places in {name}, and "
                f"inlined at each: {x.equations} of {inspection.equations} equations. "
                "The time lost is an estimate",
                fix="Stack its arguments and call it once: under `jax.vmap` if the "
                "calls are independent, in `jax.lax.scan` if each needs the result of "
                "the one before.",
            )
    for x in inspection.constants:
        if x.bytes >= _LARGE_CONSTANT:
            leaf = f"{x.dtype}[{','.join(map(str, x.shape))}]"
            yield Finding(
                kind="large-constant",
                severity="medium",
                function=name,
                **at(x),
                leaf=leaf,
                message=f"{name} captured an array of {x.bytes / 2**20:.1f} MiB "
                f"({leaf}), first used here: it is a constant, copied into each "
                "compiled program",
                fix="Pass it as an argument, or as a field of a Module argument.",
            )


def _loop_fix(loop: Any) -> str:
    source = linecache.getline(loop.file, loop.line).strip()
    source = re.sub(r"\s+#.*", "", source)  # a comment
    if source.startswith(("for ", "while ")):
        # Not all iterations need be alike: the first may differ.
        bounds = re.fullmatch(r"for .* in range\(([^,]*)\):", source)
        fori = f", or as `jax.lax.fori_loop(0, {bounds[1]}, ...)`" if bounds else ""
        return (
            f"Write `{source}` as `jax.lax.scan`{fori}, with the layers or steps "
            "stacked, so that it is compiled once."
        )
    return (
        "Write the comprehension as one call under `jax.vmap`, or as `jax.lax.map`, "
        "with its items stacked, so that it is compiled once."
    )


def _is_large(x: Any, equations: int) -> bool:
    least = max(_LOOP_EQUATIONS, _LOOP_SHARE * equations)
    return x.equations >= least and not is_library(x.file)


def _is_unrolled(loop: Any, equations: int) -> bool:
    # `scan` needs it to be uniform.
    many = loop.iterations >= _ITERATIONS and loop.uniform
    return many and _is_large(loop, equations)


def _is_inlined(x: Any, equations: int) -> bool:
    return x.call_sites >= _CALL_SITES and _is_large(x, equations)


# --- stale globals -------------------------------------------------------------------


def _root(name: str) -> str:
    """The variable of `config.lr`."""
    return name.partition(".")[0]


def _stale(watch: Watch) -> Iterator[Finding]:
    if not any(watch.snapshots.values()):
        return
    from eqx_fastjit.insight import changed

    found: list[tuple[Trace, Any]] = []
    replaced = _replaced(watch)
    for number, kept in watch.snapshots.items():
        current = set(replaced.get(number, ()))
        for trace, snapshot, _ in reversed(kept):
            changes = changed(snapshot)
            for change in changes:
                # If a later trace has the new value, it is mostly a second stage, with
                # other lengths. Nobody knows of calls with the signature of the first.
                is_known = change.name in watch.written or _root(change.name) in current
                if not is_known and not is_library(change.file):
                    found.append((trace, change))
            current |= _as_read(snapshot, changes)
    # Several traces of a function find the same.
    for same in grouped(found, lambda x: (x[1].file, x[1].line, x[1].name)).values():
        trace, change = same[0]
        yield Finding(
            kind="stale-global",
            # It costs wrong results, not seconds.
            severity="medium",
            function=trace.function.qualname,
            **at(change),
            leaf=change.name,
            count=len({t.number for t, _ in same}),
            message=f"{change.kind} `{change.name}` was {change.old} when "
            f"{trace.function.qualname} was traced and is {change.new} at the end of "
            "the program; calls with the same signature still use the old value",
            fix=f"Pass `{change.name}` as an argument, or call "
            f"`{_called(trace.function)}.clear_cache()` after a change.",
        )


def _called(function: Any) -> str:
    """The name of a function where it is called; of a method, after its class."""
    return function.qualname.rpartition("<locals>.")[2]


def _as_read(snapshot: Any, changes: Any) -> set[str]:
    """The variables that still are as a trace has read them."""
    # Nothing is known of what a function that is gone has read.
    known = {value.name for value in snapshot.values if value.function() is not None}
    return known - {_root(change.name) for change in changes}


def _replaced(watch: Watch) -> dict[int, set[str]]:
    """Of functions that are gone: what later ones in their place read, as it is now.

    A loop that wraps a function anew does so with the values that it has then, and so
    does a cell of a notebook that defines it anew.
    """
    from eqx_fastjit.insight import changed

    found: dict[int, set[str]] = {}
    later: dict[Any, set[str]] = collections.defaultdict(set)
    for number, kept in reversed(watch.snapshots.items()):
        key = _in_place_of(kept[-1].trace.function)
        if kept[-1].source() is None:
            found[number] = set(later[key])
        for _, snapshot, _ in kept:
            later[key] |= _as_read(snapshot, changed(snapshot))
    return found


def _in_place_of(function: Any) -> Any:
    """The same for functions of which a later one replaces an earlier one."""
    place = function.place
    if place is None or function.name == "<lambda>":
        return function.key()
    return function.qualname, place.file


# --- numerics ------------------------------------------------------------------------


def _numerics(seen: list[Seen]) -> Iterator[Finding]:
    for s in seen:
        wrong = [d for d in s.deviations or () if _is_wrong(d)]
        if not wrong:
            continue
        worst = max(wrong, key=lambda d: (d.not_finite, d.absolute / (d.scale or 1)))
        function = s.trace.function
        text = (
            f"by up to {worst.absolute:.3g}, where values go up to {worst.scale:.3g} "
            f"({worst.ulps} units in the last place)"
        )
        if worst.not_finite:
            n = plural(worst.not_finite, "element")
            verb = "is" if worst.not_finite == 1 else "are"
            text = f"{n} {verb} NaN or infinite in only one of them"
        yield Finding(
            kind="numerics",
            severity="medium",
            function=function.qualname,
            **at(function.place or s.site),
            leaf=worst.path,
            count=len(wrong),
            message=f"jitted and eager results of {function.qualname} differ: {text}",
            fix="The compiler may reorder and simplify arithmetic (`x + y - x`). "
            "Rewrite expressions that cancel, or compute them in a wider dtype.",
        )


def _is_wrong(d: Deviation) -> bool:
    # Fusion and reordering cost a few, sometimes many, units in the last place. A loss
    # of half of the digits of the leaf's largest value is more than that, unless it is
    # within the rounding of larger values that the leaf may be computed from.
    limit = max(d.eps**0.5 * d.scale, d.eps * d.largest)
    return d.not_finite > 0 or d.absolute > limit


def _notes(watch: Watch) -> Iterator[str]:
    if not watch.watches_jax:
        yield "The program did not import JAX."
        return
    yield from tuple(watch.notes)
    if watch.share < _BUSY:
        yield (
            "The machine was busy with other programs. This one had a processor for "
            f"{watch.share:.0%} of the time in which it needed one, and durations are "
            "longer by as much."
        )
    for trace in tuple(watch.begun.values()):
        yield (
            f"{function_name(trace)} was still being traced or compiled, for "
            f"{show_seconds(time.time() - trace.started)}, by the call at "
            f"{line_of(trace.site) or '?'}."
        )
    for what in watch.waits.missing:
        yield f"Not available with this version of JAX: {what}."
    # Under `jax.grad` outside of any jitted function, JAX compiles the backward pass of
    # ours as a function of its own.
    ours = [s.trace.function.place for s in tuple(watch.seen.values())]
    places = {place[:2] for place in ours if place is not None}
    if any(_is_plain_jit(c, places) for c in tuple(watch.plain.compiles)):
        yield (
            "For functions under plain `jax.jit`, JAX reports the argument that "
            "changed, but not the leaf in it. These functions are not searched for "
            "unrolled loops, inlined functions, large constants, stale globals and "
            "numerics. "
            "For `jax.jit(jax.grad(f))` and the like, JAX does not report the cause."
        )
    if not watch.plain.explained:
        yield "This version of JAX does not report why `jax.jit` functions compile."


def _is_plain_jit(c: Compile, ours: set[tuple[str, int]]) -> bool:
    """Whether it is of a function that the program itself passed to `jax.jit`."""
    place = c.miss and c.miss.place
    is_another = place and (is_library(place.file) or place[:2] in ours)
    return c.miss is not None and not is_another
