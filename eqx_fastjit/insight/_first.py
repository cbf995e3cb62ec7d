"""Why a first compilation took long: what nothing but an edit of the function spares.

A trace is looked through as soon as it is compiled, if that took long, and described:
nothing of it is kept.
"""

import collections
import contextlib
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax

from eqx_fastjit._blocking import has_host_callbacks, is_callback
from eqx_fastjit._callables import source_of
from eqx_fastjit._engine import engine_module
from eqx_fastjit._facts import Place

from ._causes import Finding, make_finding
from ._constants import Constant, find_constants
from ._equations import Equation, read_jaxpr
from ._events import Event
from ._file import Run
from ._loops import scannable, UnrolledLoop
from ._operations import Operation, operation
from ._private import function_in_jit, keeps_callbacks
from ._why import is_operation, line_of, name_of
from ._words import listed, plural, show_bytes, show_place, show_seconds


# Seconds of a compilation that make it worth to look at its equations.
LEAST_SECONDS = 0.2
# Bytes from which a constant is named, even if XLA folds nothing.
_LARGE = 1 << 20
# Seconds to read a compiled program from JAX's persistent cache.
_READING = 4e-3
# Seconds of XLA for an operation alone, where a run has none.
_ALONE = 0.02
# What a `scan` takes, in iterations, and its loop, in operations.
_SCANNED, _AROUND = 4, 20
# What `vmap` takes, in iterations.
_MAPPED = 2
# XLA's part over that of tracing and lowering, where a run has nothing to compare with.
_USUAL = 4.0


class Look(NamedTuple):
    """What is to be seen in a trace."""

    # Whether it calls back into Python; and by more than the checks of Equinox.
    calls_back: bool = False
    has_own_callbacks: bool = False
    equations: int = 0
    constants: tuple[Constant, ...] = ()
    # The unrolled loops that a `scan` could have, none inside another one.
    loops: tuple[UnrolledLoop, ...] = ()
    # Of an operation outside of jit.
    operation: Operation = Operation()


def look(event: Event, trace: Any) -> Look:
    """Look at what has just been compiled, of which `trace_of` gives the trace."""
    out = Look()
    # Values of the program's, with attributes of any kind, are looked at.
    with contextlib.suppress(Exception):
        if is_operation(event):
            return Look(operation=operation())
        if trace is None:
            return out
        is_long = event.seconds >= LEAST_SECONDS and not event.cached
        # Of plain `jax.jit` only the jaxpr says whether it calls back.
        calls_back = not event.is_outside and has_host_callbacks(trace)
        out = Look(calls_back, calls_back)
        if not (is_long or calls_back or event.is_outside):
            return out
        scope = read_jaxpr(trace.jaxpr)
        equations = [e for x in scope.distinct() for e in x.equations]
        calls_back = calls_back or any(is_callback(e.name) for e in equations)
        own = any(map(_is_own_callback, equations))
        out = Look(calls_back, own)
        if is_long:
            found = find_constants(scope, _source(event))
            large = [x for x in found if x.bytes >= _LARGE or x.seconds > LEAST_SECONDS]
            out = Look(calls_back, own, scope.size, tuple(large), scannable(scope))
    return out


def _source(event: Event) -> Any:
    """The Python function that is being compiled, if it is there."""
    if event.is_outside:
        return source_of(function_in_jit())
    source = engine_module().active().flat.source
    return source and source()


def _is_own_callback(equation: Equation) -> bool:
    """Whether an equation calls a function that is not Equinox's."""
    if "callback" not in equation.name and "debug" not in equation.name:
        return False
    function = equation.jax.params.get("callback")
    function = getattr(function, "callback_func", function)
    return not getattr(function, "__module__", "").startswith("equinox.")


def constant_findings(
    run: Run, remaining: Sequence[Event], limit: float
) -> tuple[list[Finding], list[Event]]:
    """The captured constants that make a function compile for long.

    **Returns:** a finding for each function, and the compilations that they count.
    """
    by_function: dict[Any, list[Event]] = {}
    for event in remaining:
        if look_at(run, event).constants:
            by_function.setdefault(event.function.key(), []).append(event)
    found: list[Finding] = []
    explained: list[Event] = []
    for events in by_function.values():
        saved = sum(_by_constants(run, event) for event in events)
        if saved >= limit:
            found.append(_constant_finding(run, events, saved))
            explained += events
    return found, explained


def _constant_finding(run: Run, events: list[Event], saved: float) -> Finding:
    event = events[0]
    seen, function = look_at(run, event), name_of(event.function)
    constants = sorted(seen.constants, key=lambda x: -x.seconds)
    first = constants[0]
    others = [f"{x.name or 'another'}, {x.type}" for x in constants[1:]]
    folded = dict.fromkeys(f"`{name}`" for x in constants for name in x.folded)
    facts = {
        "function": function,
        "name": f"`{first.name}`, " if first.name else "",
        "short": f"`{first.name}`" if first.name else "the array",
        "type": first.type,
        "size": show_bytes(first.bytes),
        "place": show_place(first.place),
        "others": f" So are {listed(others, 3)}." if others else "",
        "compiling": show_seconds(event.compile),
        "equations": plural(seen.equations, "equation"),
        "folded": listed(folded),
    }
    calls = (f"`{function}` at {show_place(line_of(e))}" for e in events)
    return make_finding(
        "captured constant",
        facts,
        "folded" if folded else None,
        seconds=sum(e.seconds for e in events),
        saves=saved,
        line=first.place,
        leaf=first.name,
        count=len(events),
        functions={function: len(events)},
        calls=dict(collections.Counter(calls)),
    )


def look_at(run: Run, event: Event) -> Look:
    """What was to be seen in the trace of an event."""
    return run.looks.get(event.number, Look())


def _by_constants(run: Run, event: Event) -> float:
    """About what constants add to a compilation.

    That is what XLA takes beyond its usual share in this run, and at most what holding
    and folding them may take.
    """
    constants = look_at(run, event).constants
    others = [
        e
        for e in run.events
        if e.compile and e.lower and not e.cached
        if not look_at(run, e).constants
    ]
    shares = [e.compile / _before_xla(e) for e in others]
    usual = (statistics.median(shares) if shares else _USUAL) * _before_xla(event)
    # The former two take longer, too. In a small program an equation takes no longer
    # than an operation that is compiled by itself.
    if alone := [e.compile for e in others if is_operation(e)]:
        equations = look_at(run, event).equations
        usual = min(usual, statistics.median(alone) * equations)
    return max(0.0, min(event.compile - usual, sum(x.seconds for x in constants)))


def _before_xla(event: Event) -> float:
    """The seconds of tracing and lowering."""
    return max(0.0, event.trace - event.nested) + event.lower


def helps(
    run: Run,
    events: Sequence[Event],
    wanted: Sequence[Event],
    by_data: Sequence[Event],
    limit: float,
) -> list[Finding]:
    """What would spare these compilations, of which no other row tells.

    **Arguments:**

    - `wanted`: those with rows of what has to be compiled.
    - `by_data`: what is compiled, too, if the program computes with the same data.
    - `limit`: the seconds from which it is worth a row.
    """
    # What `scan` does not save, XLA has to compile.
    left = {e: e.compile for e in events if e.compile and not e.cached}
    found: list[Finding] = []
    for loop, saved in _loops(run, [*events, *wanted], by_data):
        if loop.saves >= limit:
            found.append(loop)
            for event in left.keys() & saved.keys():
                left[event] -= saved[event] * event.compile / event.seconds
    found += _cache_helps(run, left, limit)
    return [x for x in found if x.saves >= limit]


def _loops(
    run: Run, events: Sequence[Event], by_data: Sequence[Event]
) -> Iterator[tuple[Finding, dict[Event, float]]]:
    """The unrolled loops, each once, with what `scan` saves of each compilation."""
    alone = sorted(e.compile for e in run.events if e.compile and is_operation(e))
    # Some are no single ones, such as those that draw random numbers.
    each = alone[len(alone) // 4] if alone else _ALONE
    by_place: dict[Place, dict[Event, UnrolledLoop]] = {}
    for event in run.events:
        for loop in look_at(run, event).loops:
            by_place.setdefault(loop.place, {})[event] = loop
    own, other = {*events}, {*by_data}
    for place, unrolled in by_place.items():
        told = [e for e in unrolled if e in own or e in other]
        if not told:
            continue  # other rows tell of all of them
        whole = {e: _by_scan(run, e, x, each) for e, x in unrolled.items()}
        saved = {e: x for e, x in whole.items() if e in own}
        more = [x for e, x in whole.items() if e in other]
        total, in_all = sum(saved.values()), sum(whole.values())
        kept = total + sum(more)
        functions = collections.Counter(name_of(e.function) for e in saved)
        event = max(told, key=lambda e: look_at(run, e).equations)
        loop = unrolled[event]
        facts = {
            "loop": loop,
            "place": show_place(place),
            "functions": listed(f"`{name}`" for name in functions),
            "total": look_at(run, event).equations,
            "differ": _differ(loop),
            "xs": _scanned(loop),
            "stack": _STACK if loop.layered else "",
            "kept": _KEPT.format(show_seconds(kept)) if more else "",
            "alone": _ALONE_SAVES.format(show_seconds(in_all))
            if in_all > 1.2 * max(total, kept)
            else "",
        }
        yield (
            make_finding(
                "scan",
                facts,
                "independent" if loop.independent else None,
                seconds=total,
                saves=total,
                otherwise=total - kept,
                line=place,
                count=len(saved),
                functions=dict(functions),
            ),
            saved,
        )


def _by_scan(run: Run, event: Event, loop: UnrolledLoop, each: float) -> float:
    """About what `scan` saves of a compilation with an unrolled loop.

    Tracing and lowering follow the number of equations. XLA compiles iterations that
    are alike faster than the first one: measured, a `scan` takes about as long as four
    of them, and the loop itself as twenty simple operations that are compiled alone, of
    which one takes `each`. (So it was for layers, recurrent cells, solvers' steps and
    gates of circuits, with their gradients.)
    """
    equations = look_at(run, event).equations
    share = loop.equations / equations
    spared = share - loop.scan_equations / equations
    unrolled = share * (event.compile - _by_constants(run, event))
    n, around = (_MAPPED, 0) if loop.independent else (_SCANNED, _AROUND)
    saved = unrolled * (1.0 - n / loop.iterations) - around * each
    return max(0.0, spared * _before_xla(event) + saved)


_ALONE_SAVES = " Without the edits of other rows, it saves {}."
_KEPT = " If lengths, batches and dtypes stay as they are, it saves {}."

# With the layers as they are, so that results are the same.
_STACK = (
    " Stack them once, where the model is made, and keep what is stacked in place of "
    "the list: `parts = [eqx.partition(x, eqx.is_array) for x in layers]`, "
    "`arrays, rest = zip(*parts)` and "
    "`xs = jax.tree.map(lambda *x: jnp.stack(x), *arrays)`; in `body`, the one that it "
    "takes is `eqx.combine(arrays, rest[0])`. (They may differ in their arrays only. "
    "New layers are stacked from the start if `eqx.filter_vmap` makes them over their "
    "keys. To stack them in what is differentiated compiles for longer than the loop.)"
)


def _differ(loop: UnrolledLoop) -> str:
    numbers = f"numbers in it differ: {listed(loop.numbers, 3)}"
    return f" ({numbers})" if loop.numbers else ""


def _scanned(loop: UnrolledLoop) -> str:
    """What the iterations of a loop do not share."""
    parts = ["the arrays that the iterations take of a list, stacked,"] * loop.layered
    parts += ["an array of the numbers that differ"] * bool(loop.numbers)
    parts += ["the array that it takes parts of"] * loop.indexed
    return f"{' and '.join(parts)} as `xs`" if parts else "`xs=None, length=n`"


def _counted(events: Sequence[Event], others: Sequence[Event]) -> Iterator[str]:
    """The names of functions, and how many of its programs if others have the rest."""
    rest = collections.Counter(name_of(e.function) for e in others)
    for name, n in collections.Counter(name_of(e.function) for e in events).items():
        of = f"{n} of the {n + rest[name]} programs of " if rest[name] else ""
        yield f"{of}`{name}`"


_AS_IT_IS = ", as the program is, because the cache keeps what other rows tell of, too"


def _cache_helps(run: Run, left: dict[Event, float], limit: float) -> Iterator[Finding]:
    """What JAX's persistent cache would save, of what it keeps; and what it refuses."""

    def is_refused(event: Event) -> bool:
        return look_at(run, event).calls_back and not keeps_callbacks()

    compiled = [e for e in run.events if e.compile and not e.cached]
    compiled = [e for e in compiled if not is_refused(e)]
    second = run.seconds - sum(max(0.0, e.compile - _READING) for e in compiled)
    refused = [*filter(is_refused, left)]
    kept = [e for e in left if e not in refused]
    told = sum(e.compile for e in compiled) - sum(left[e] for e in kept)
    checked = [e for e in refused if not look_at(run, e).has_own_callbacks]
    others = [e for e in refused if e not in checked]
    is_set = run.cache is not None or any(e.cached for e in run.events)
    found = [("persistent cache", kept, refused)] * (not is_set)
    for cause, events, without in [*found, ("host callbacks", checked, others)]:
        seconds = sum(left[e] for e in events)
        saved = max(0.0, seconds - _READING * len(events))
        names = listed(f"`{name_of(e.function)}`" for e in events)
        unkept = listed(_counted(without, events))
        note = f" That is without {unkept}: JAX keeps nothing that calls back."
        facts = {
            "names": names,
            "version": jax.__version__,
            "compiling": show_seconds(seconds),
            "second": show_seconds(second),
            "and_cache": "" if run.cache else " and the cache",
            "without": note if without else "",
            "others": _AS_IT_IS * (told >= limit),
        }
        yield make_finding(cause, facts, seconds=seconds, saves=saved)
