"""From what was seen to findings.

Each threshold says why it is what it is. The rule behind all of them: a program that
compiles for a few shapes, modes or dtypes because it was meant to has no finding.
"""

import collections
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from eqx_fastjit._units import show_seconds

from ._compilations import make_compilations
from ._hints import make_hints
from ._plain import Compile
from ._report import Finding, FunctionRow, Report
from ._sites import is_library, Line
from ._time import time_spent
from ._waits import Waiting
from ._watch import Deviation, Seen, Watch


# How often the call at one line must have had its function compiled again, for the same
# kind of reason, until that is a finding.
_AT_LEAST = {
    # A training and an evaluation batch, each with a ragged last one, may all go
    # through one helper: four shapes, three of them traced after the first.
    "shape-churn": 4,
    # As for numbers, in `_NUMBERS`; other statics (names, modes, functions) have more
    # values by design.
    "static-churn": 5,
    # With and without an optional argument, for training and for evaluation: three.
    "structure-churn": 4,
    # A step built for each of a few configurations that are compared is meant so.
    "fresh-function": 4,
    # float16, bfloat16 and float32 are compared on purpose. But see `_changes_kind`.
    "dtype-churn": 3,
    # Nobody wants two programs for this, which differ in nothing else.
    "weak-type": 1,
    # On the host, then on one device, then on all.
    "sharding-churn": 3,
    # Once for each of two precisions, and back.
    "config-churn": 3,
}
# A number that is static has two or three values by design, such as a depth.
_NUMBERS = 3
_NUMBER_TYPES = ("(int)", "(float)", "(complex)")

# Below this a person does not ask why it takes so long, and large models take it on any
# machine. Seconds; `--slow` sets another.
SLOW = 60.0

# A dozen layers in a Python loop compile well enough, and fewer equations in no time. A
# loop that is a small part of the function is not what makes it slow.
_TURNS = 20
_LOOP_EQUATIONS = 300
_LOOP_SHARE = 0.3
# A block called for each of a dozen layers, by hand, is no fault.
_CALL_SITES = 16
# Bytes. A table of positions or of filters may well be a constant; a data set may not.
_LARGE_CONSTANT = 4 << 20

# Waiting once for the result, or at the end of each epoch, is no loop.
_WAITS = 10
# Seconds, share of the time from the first such wait to the last, and share of the
# whole run: less is noise, or not worth a change. A loop that logs the loss of each
# step, but has nothing else to do meanwhile, stays below.
_WAIT_SECONDS = 0.3
_WAIT_SHARE = 0.1
_WAIT_RUN_SHARE = 0.02

# Seconds from which an operation outside of jit has a row of its own in the table.
_OWN_ROW = 3.0

# Of the seconds that the program ran: a quarter is high, a twentieth medium. Or that
# many seconds, in a program that runs for long. In a short one, up to a second is low.
_HIGH = 0.25, 30.0
_MEDIUM = 0.05, 3.0
_LOW = 1.0


class Cause(NamedTuple):
    """One time that a function was traced or compiled once more."""

    function: str
    # The same for each function that the line made.
    key: Any
    place: Line | None
    site: Line | None
    kind: str
    leaf: str
    old: str
    new: str
    seconds: float
    advice: str


def make_report(
    watch: Watch, program: str, exit_code: int | None, *, slow: float = SLOW
) -> Report:
    """Look through what was seen.

    **Arguments:**

    - `watch`: stopped, or going on.
    - `program`: the script or module, as the user gave it.
    - `exit_code`: its own; `None` while it runs.
    - `slow`: a first call that compiles for longer, in seconds, is a finding.
    """
    seen = sorted(watch.seen.values(), key=lambda s: s.trace.number)
    ours = list(_explained(seen)) if seen else []
    plain = list(watch.plain.compiles)
    causes = [
        *[c for s, c in ours if c is not None and s.trace.inside is None],
        *[c for c in map(_plain_cause, plain) if c is not None],
    ]
    total = watch.so_far()
    findings = [
        *_churn(causes, total),
        *_slow_first_calls(ours, plain, slow, total),
        *_traced(seen, total),
        *_stale(watch),
        *_numerics(seen),
        *_blocking(tuple(watch.waits.by_line.values()), total),
    ]
    spent = time_spent(watch)
    unrolled = {(f.file, f.line) for f in findings if f.kind == "unrolled-loop"}
    return Report(
        program=program,
        exit_code=exit_code,
        seconds=total,
        findings=tuple(sorted(findings, key=_importance)),
        functions=tuple(_rows(ours, plain)),
        compilations=make_compilations(ours, plain, watch.started),
        notes=tuple(_notes(watch)),
        hints=make_hints(watch, spent, unrolled),
        time=spent,
    )


_SEVERITIES = ("high", "medium", "low")


def _importance(finding: Finding) -> Any:
    return (
        _SEVERITIES.index(finding.severity),
        -(finding.seconds or 0),
        finding.kind,
        finding.file or "",
        finding.line or 0,
    )


def _severity(seconds: float, total: float) -> str:
    if seconds <= _LOW:
        return "low"
    for name, (share, limit) in (("high", _HIGH), ("medium", _MEDIUM)):
        if seconds >= limit or (total > 0 and seconds / total >= share):
            return name
    return "low"


# --- why it was traced again ---------------------------------------------------------


def _explained(seen: list[Seen]) -> Iterator[tuple[Seen, Cause | None]]:
    """Each trace of ours with its cause; `None` for a first one."""
    from eqx_fastjit.insight._explain import explain_trace

    # To compare with the last ones is enough, and with all may be very many.
    earlier: dict[Any, collections.deque[Any]] = collections.defaultdict(
        lambda: collections.deque(maxlen=32)
    )
    for s in seen:
        trace = s.trace
        key = trace.key()
        explanation = None
        if not trace.failed:
            explanation = explain_trace(trace, list(earlier[key]))
            earlier[key].append(trace)
        s.explanation = explanation
        yield s, None if explanation is None else _cause(s, explanation)


def _place(trace: Any) -> Line | None:
    """Where the function was defined; of a `Partial` that is not known."""
    return None if trace.wrapped() else _line(trace.function.place)


def _name(trace: Any) -> str:
    inside = trace.wrapped()
    name = trace.function.qualname
    return f"{name} of {inside[0].partition(' (')[0]}" if inside else name


def _cause(s: Seen, explanation: Any) -> Cause:
    from eqx_fastjit.insight._differences import KINDS

    leaf = old = new = ""
    for difference in explanation.differences:
        if KINDS.get(difference.what) == explanation.kind:
            leaf, old, new = difference.path, difference.old, difference.new
            break
    return Cause(
        _name(s.trace),
        s.trace.key(),
        _place(s.trace),
        s.site or _line(s.trace.site),
        explanation.kind,
        leaf,
        old,
        new,
        s.trace.seconds,
        explanation.advice,
    )


def _line(place: Any) -> Line | None:
    return None if place is None else Line(*place)


_PLAIN_ADVICE = {
    "static-churn": "Each new value of a static argument (`static_argnums`, "
    "`static_argnames`) compiles anew. Pass numbers that change as arrays.",
}


def _plain_cause(c: Compile) -> Cause | None:
    miss = c.miss
    if miss is None or miss.kind in ("first-call", "other"):
        return None
    from eqx_fastjit.insight._differences import ADVICE

    return Cause(
        miss.name,
        (miss.name, miss.place),
        miss.place,
        c.site,
        miss.kind,
        miss.leaf,
        miss.old,
        miss.new,
        c.seconds,
        _PLAIN_ADVICE.get(miss.kind) or ADVICE[miss.kind],
    )


def _churn(causes: list[Cause], total: float) -> Iterator[Finding]:
    groups: dict[Any, list[Cause]] = collections.defaultdict(list)
    for cause in causes:
        # By line: calls at several lines with several signatures are meant so.
        groups[cause.key, cause.site, cause.kind].append(cause)
    for group in groups.values():
        if len(group) < _threshold(group):
            continue
        first = group[0]
        leaf = collections.Counter(c.leaf for c in group).most_common(1)[0][0]
        seconds = sum(c.seconds for c in group)
        made = first.kind == "fresh-function" and first.place is not None
        line = first.place if made else first.site or first.place
        yield Finding(
            kind=first.kind,
            severity=_severity(seconds, total),
            function=first.function,
            file=line and line.file,
            line=line and line.line,
            leaf=leaf,
            seconds=seconds,
            count=len(group),
            message=_churn_message(group, leaf),
            fix=first.advice,
        )


def _threshold(group: list[Cause]) -> int | float:
    kind = group[0].kind
    if kind == "static-churn" and all(c.new.endswith(_NUMBER_TYPES) for c in group):
        return _NUMBERS
    if kind == "dtype-churn" and any(map(_changes_kind, group)):
        return 1
    return _AT_LEAST.get(kind, float("inf"))


def _changes_kind(cause: Cause) -> bool:
    """Whether integers became floats, at one call.

    That is a carry with the wrong initial value, not a precision to be compared.
    """

    def is_whole(dtype: str) -> bool:
        return dtype.startswith(("int", "uint", "bool", "s", "u", "i", "pred"))

    return is_whole(cause.old) and not is_whole(cause.new)


def _churn_message(group: list[Cause], leaf: str) -> str:
    first = group[0]
    times = "once more" if len(group) == 1 else f"{len(group)} more times"
    text = f"{first.function} was compiled {times} by the call at {first.site or '?'}"
    if first.kind == "fresh-function":
        return f"{text}, for a new function each time"
    steps = [c for c in group if c.leaf == leaf and (c.old or c.new)]
    if not steps:
        return text
    values = [steps[0].old, *[c.new for c in steps]]
    if first.kind == "weak-type":
        values = [{"True": "weak", "False": "strong"}.get(v, v) for v in values]
    values = list(dict.fromkeys(values))
    shown = " -> ".join(values[:5]) + " and so on" * (len(values) > 5)
    what = {"shape-churn": "shape ", "dtype-churn": "dtype "}.get(first.kind, "")
    return f"{text}: `{leaf}` changed, {what}{shown}"


# --- first calls ---------------------------------------------------------------------


def _slow_first_calls(
    ours: list[tuple[Seen, Cause | None]],
    plain: list[Compile],
    slow: float,
    total: float,
) -> Iterator[Finding]:
    for s, cause in ours:
        t = s.trace
        if cause is None and t.inside is None and not t.failed:
            place = _place(t) or s.site
            parts = t.trace, t.lower, t.compile
            yield from _slow(_name(t), place, s.site, parts, slow, total)
    for c in plain:
        if c.miss is not None and c.miss.kind == "first-call":
            place = c.miss.place or c.site
            parts = c.trace, c.lower, c.compile
            yield from _slow(c.name, place, c.site, parts, slow, total)


def _slow(
    function: str,
    place: Line | None,
    site: Line | None,
    parts: tuple[float, float, float],
    slow: float,
    total: float,
) -> Iterator[Finding]:
    seconds = sum(parts)
    if seconds < slow:
        return
    trace, lower, compile = parts
    fix = (
        "Fewer equations take less time: `jax.lax.scan` for repeated layers and steps, "
        "one call under `jax.vmap` for many."
    )
    if trace >= seconds / 2:
        fix += " Most of it was Python: look for other work in the function too."
    elif compile >= seconds / 2:
        fix += (
            " Most of it was XLA's compiler, which need not run at each start: keep "
            "compiled programs (`jax_compilation_cache_dir`; `eqx-fastjit lock "
            "--precompile` fills it)."
        )
    yield Finding(
        kind="slow-first-call",
        severity=_severity(seconds, total),
        function=function,
        file=place and place.file,
        line=place and place.line,
        leaf="",
        seconds=seconds,
        count=1,
        message=f"the first call, at {site or '?'}, spent {trace:.2f} s tracing, "
        f"{lower:.2f} s lowering and {compile:.2f} s in XLA's compiler",
        fix=fix,
    )


# --- what is in the traces -----------------------------------------------------------


def _traced(seen: list[Seen], total: float) -> Iterator[Finding]:
    # Of the same function each trace tells the same: the one that cost most counts.
    best: dict[Any, Finding] = {}
    for s in seen:
        if s.inspection is None:
            continue
        for finding in _in_trace(s, s.inspection, total):
            key = (finding.kind, finding.file, finding.line, finding.leaf)
            other = best.get(key)
            if other is None or (finding.seconds or 0) > (other.seconds or 0):
                best[key] = finding
    yield from best.values()


def _in_trace(s: Seen, inspection: Any, total: float) -> Iterator[Finding]:
    name = _name(s.trace)
    compiling = s.trace.trace + s.trace.lower + s.trace.compile
    loops = [x for x in inspection.loops if _is_unrolled(x, inspection.equations)]
    for loop in loops:
        saved = loop.equations - loop.scan_equations
        seconds = compiling * saved / inspection.equations
        yield Finding(
            kind="unrolled-loop",
            severity=_severity(seconds, total),
            function=name,
            file=loop.file,
            line=loop.line,
            leaf="",
            seconds=seconds,
            count=loop.turns,
            message=f"a Python loop of {loop.turns} turns is {loop.equations} of the "
            f"{inspection.equations} equations of {name}; a scan would leave about "
            f"{loop.scan_equations}. Its share of the compilation is estimated",
            fix="Write it as `jax.lax.scan` or `jax.lax.fori_loop`, with the layers or "
            "steps stacked: it is compiled once then.",
        )
    for x in inspection.inlined:
        if not loops and _is_inlined(x, inspection.equations):
            saved = x.equations * (x.calls - 1) / x.calls
            seconds = compiling * saved / inspection.equations
            yield Finding(
                kind="inlined-function",
                severity=_severity(seconds, total),
                function=x.name,
                file=x.file,
                line=x.line,
                leaf="",
                seconds=seconds,
                count=x.calls,
                message=f"{x.name} is called from {x.call_sites} places in {name}, and "
                f"inlined at each: {x.equations} of {inspection.equations} equations. "
                "Its share of the compilation is estimated",
                fix="Stack what it is called with, and call it once: under `jax.vmap` "
                "if the calls are independent, in `jax.lax.scan` if one needs the "
                "other.",
            )
    for x in inspection.constants:
        if x.bytes >= _LARGE_CONSTANT:
            shape = ",".join(map(str, x.shape))
            yield Finding(
                kind="large-constant",
                severity="medium",
                function=name,
                file=x.file,
                line=x.line,
                leaf=f"{x.dtype}[{shape}]",
                seconds=None,
                count=1,
                message=f"{name} captured an array of {x.bytes / 2**20:.1f} MiB "
                f"({x.dtype}[{shape}]), used first here: it is a part of the program, "
                "copied into each one that is compiled",
                fix="Pass it as an argument, or keep it in a field of a Module that is "
                "one.",
            )


def _is_unrolled(loop: Any, equations: int) -> bool:
    return (
        loop.turns >= _TURNS
        and loop.equations >= max(_LOOP_EQUATIONS, _LOOP_SHARE * equations)
        # Without that there is no `scan`.
        and loop.uniform
        and not is_library(loop.file)
    )


def _is_inlined(x: Any, equations: int) -> bool:
    return (
        x.call_sites >= _CALL_SITES
        and x.equations >= max(_LOOP_EQUATIONS, _LOOP_SHARE * equations)
        and not is_library(x.file)
    )


# --- stale globals -------------------------------------------------------------------


def _stale(watch: Watch) -> Iterator[Finding]:
    if not any(watch.snapshots.values()):
        return
    from eqx_fastjit.insight import changed

    # By what is read where: several traces of a function tell the same.
    found: dict[Any, tuple[Any, Any, set[int]]] = {}
    for kept in watch.snapshots.values():
        for trace, snapshot in reversed(kept):
            for change in changed(snapshot):
                if change.name in watch.written:
                    continue
                key = (change.file, change.line, change.name)
                found.setdefault(key, (trace, change, set()))[2].add(trace.number)
    for trace, change, traces in found.values():
        yield Finding(
            kind="stale-global",
            # What it costs are wrong results, not seconds.
            severity="medium",
            function=trace.function.qualname,
            file=change.file,
            line=change.line,
            leaf=change.name,
            seconds=None,
            count=len(traces),
            message=f"{change.kind} `{change.name}` was {change.old} when "
            f"{trace.function.qualname} was traced and is {change.new} at the end of "
            "the program; calls of the same signature keep to the old value",
            fix="Pass it as an argument, or call `f.clear_cache()` after a change.",
        )


# --- numerics ------------------------------------------------------------------------


def _numerics(seen: list[Seen]) -> Iterator[Finding]:
    for s in seen:
        wrong = [d for d in s.deviations or () if _is_wrong(d)]
        if not wrong:
            continue
        worst = max(wrong, key=lambda d: (d.not_finite, d.absolute / (d.scale or 1)))
        function = s.trace.function
        line = _line(function.place) or s.site
        text = f"up to {worst.absolute:.3g} where values go up to {worst.scale:.3g}"
        if worst.not_finite:
            text = f"{worst.not_finite} elements are NaN or infinite in one alone"
        yield Finding(
            kind="numerics",
            severity="medium",
            function=function.qualname,
            file=line and line.file,
            line=line and line.line,
            leaf=worst.path,
            seconds=None,
            count=len(wrong),
            message=f"jitted and eager results of {function.qualname} differ: {text} "
            f"({worst.ulps} units in the last place)",
            fix="The compiler may reorder and simplify arithmetic (`x + y - x`). "
            "Rewrite what cancels, or compute it in a wider dtype.",
        )


def _is_wrong(d: Deviation) -> bool:
    # Fusion and reordering cost a few, sometimes many, units in the last place. What
    # takes half of the digits of the leaf's largest value is more than that, unless it
    # is within the rounding of larger values that it may come from.
    limit = max(d.eps**0.5 * d.scale, d.eps * d.largest)
    return d.not_finite > 0 or d.absolute > limit


# --- waiting -------------------------------------------------------------------------


def _blocking(waits: Any, total: float) -> Iterator[Finding]:
    by_line: dict[Line, list[Waiting]] = collections.defaultdict(list)
    for waiting in waits:
        by_line[waiting.line].append(waiting)
    for line, group in by_line.items():
        count = max(w.count for w in group)
        lost = sum(w.lost for w in group)
        span = max(w.last for w in group) - min(w.first for w in group)
        least = max(_WAIT_SECONDS, _WAIT_SHARE * span, _WAIT_RUN_SHARE * total)
        if count < _WAITS or lost < least:
            continue
        waited = sum(w.waited for w in group)
        what = ", ".join(sorted({w.what for w in group}))
        yield Finding(
            kind="blocking",
            severity=_severity(lost, total),
            function=line.function,
            file=line.file,
            line=line.line,
            leaf="",
            seconds=lost,
            count=count,
            message=f"Python waited for the device here {count} times ({what}), "
            f"{waited:.2f} s altogether; for {lost:.2f} s of that, at most, it could "
            "have worked on",
            fix="Do not read results in each step: keep them as arrays, and read them "
            "every so many steps, or one step late. A function with host callbacks "
            "(`eqx.error_if`, `jax.debug.print`) waits in each call, and so does any "
            "call with arrays of NumPy.",
        )


# --- tables --------------------------------------------------------------------------


def _rows(
    ours: list[tuple[Seen, Cause | None]], plain: list[Compile]
) -> list[FunctionRow]:
    rows = [
        *_our_rows(ours),
        *_plain_rows([c for c in plain if c.miss is not None]),
        *_eager_rows([c for c in plain if c.miss is None]),
    ]
    return sorted(rows, key=lambda row: -row.seconds)


def _our_rows(ours: list[tuple[Seen, Cause | None]]) -> Iterator[FunctionRow]:
    groups: dict[Any, list[tuple[Seen, Cause | None]]] = collections.defaultdict(list)
    for s, cause in ours:
        groups[s.trace.key()].append((s, cause))
    for group in groups.values():
        traces = [s.trace for s, _ in group]
        place = _place(traces[0])
        yield FunctionRow(
            function=_name(traces[0]),
            file=place and place.file,
            line=place and place.line,
            jit="filter_jit",
            objects=len({t.function.number for t in traces}),
            traces=sum(t.retraced and not t.failed for t in traces),
            compiles=sum(t.compile > 0 for t in traces),
            seconds=sum(t.seconds - t.nested for t in traces),
            trace=sum(t.trace for t in traces),
            lower=sum(t.lower for t in traces),
            compile=sum(t.compile for t in traces),
            first_run=sum(t.first_run for t in traces),
            causes=_count(_our_cause(s, cause) for s, cause in group),
            calls=_calls(s.site or _line(s.trace.site) for s, _ in group),
        )


def _our_cause(s: Seen, cause: Cause | None) -> str:
    if s.trace.failed:
        return "failed"
    return "first-call" if cause is None else cause.kind


def _count(causes: Any) -> dict[str, int]:
    return dict(collections.Counter(causes).most_common())


def _calls(lines: Any) -> tuple[tuple[str, int], ...]:
    return tuple(collections.Counter(str(x or "?") for x in lines).most_common())


def _plain_rows(compiles: list[Compile]) -> Iterator[FunctionRow]:
    groups: dict[Any, list[Compile]] = collections.defaultdict(list)
    for c in compiles:
        groups[c.name, c.miss and c.miss.place].append(c)
    for (name, place), group in groups.items():
        causes = [c.miss.kind for c in group if c.miss is not None]
        yield _plain_row(name, place, "jax.jit", group, causes)


def _eager_rows(compiles: list[Compile]) -> Iterator[FunctionRow]:
    groups: dict[str, list[Compile]] = collections.defaultdict(list)
    for c in compiles:
        groups[c.name].append(c)
    small: list[Compile] = []
    for name, group in groups.items():
        if sum(c.seconds for c in group) >= _OWN_ROW:
            yield _plain_row(name, None, "jax", group, [])
        else:
            small += group
    if small:
        n = len({c.name for c in small})
        name = f"{n} operation{'s' * (n != 1)} outside of jit"
        yield _plain_row(name, None, "jax", small, [])


def _plain_row(
    name: str, place: Line | None, jit: str, group: list[Compile], causes: list[str]
) -> FunctionRow:
    return FunctionRow(
        function=name,
        file=place and place.file,
        line=place and place.line,
        jit=jit,
        objects=1 + causes.count("fresh-function"),
        traces=len(group),
        compiles=len(group),
        seconds=sum(c.seconds for c in group),
        trace=sum(c.trace for c in group),
        lower=sum(c.lower for c in group),
        compile=sum(c.compile for c in group),
        first_run=0.0,
        causes=_count(causes),
        calls=_calls(c.site for c in group),
    )


def _notes(watch: Watch) -> Iterator[str]:
    if not watch.watches_jax:
        yield "The program did not import JAX."
        return
    yield from tuple(watch.notes)
    for trace in tuple(watch.begun.values()):
        yield (
            f"{_name(trace)} was still being traced or compiled, for "
            f"{show_seconds(time.time() - trace.started)}, by the call at "
            f"{_line(trace.site) or '?'}."
        )
    for what in watch.waits.missing:
        yield f"Not seen with this version of JAX: {what}."
    if any(c.miss is not None for c in watch.plain.compiles):
        yield (
            "Of functions under plain `jax.jit` JAX tells the argument that changed, "
            "not the leaf inside of it; and they are not looked into for unrolled "
            "loops, inlined functions, large constants, stale globals and numerics. "
            "Of `jax.jit(jax.grad(f))` and the like it does not tell why they compile."
        )
    if not watch.plain.explained:
        yield "This version of JAX does not say why functions under `jax.jit` compile."
