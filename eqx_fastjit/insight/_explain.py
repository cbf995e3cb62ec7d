"""`cache_info`, `explain` and `ledger`: what was traced, why, and what it cost."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from eqx_fastjit import _record
from eqx_fastjit._describe import Entry, is_below
from eqx_fastjit._jit import jitted_function
from eqx_fastjit._place import Place
from eqx_fastjit._record import Trace
from eqx_fastjit._units import plural, show_seconds
from eqx_fastjit.doctor._report import stages

from ._advice import advice
from ._differences import Difference, KINDS, main_difference, nearest, origin
from ._table import html_text, Report, Table


@dataclasses.dataclass(frozen=True)
class Signature:
    """One signature of a function: a call without its values.

    Times are in seconds, summed over all traces and compilations.
    """

    # What differs from the first signature; all arguments, for the first.
    summary: str
    # The first call with it.
    site: Place | None
    traces: int
    # Of these, those that are a part of another function, whose seconds they count as.
    inlined: int
    compiles: int
    trace: float
    lower: float
    compile: float
    # From the end of the compilation to the return of the call.
    first_run: float


@dataclasses.dataclass(frozen=True)
class CacheInfo(Report):
    """How often a function was traced and compiled, and how long that took."""

    function: str
    # Since it was first wrapped.
    traces: int
    compiles: int
    # Kept now, each for one structure and one set of statics. One may hold compiled
    # programs for several shapes.
    specializations: int
    # Total seconds. Inlined traces count for the function around them.
    seconds: float
    # Those of the last 256 traces.
    signatures: tuple[Signature, ...]

    def title(self) -> str:
        """The totals."""
        return (
            f"{self.function}: {plural(self.traces, 'trace')}, "
            f"{plural(self.compiles, 'compile')}, "
            f"{plural(self.specializations, 'specialization')}, "
            f"{show_seconds(self.seconds)}"
        )

    def tables(self) -> list[Table]:
        """The signatures."""
        rows: list[Sequence[Any]] = []
        for s in self.signatures:
            counts = s.traces, s.inlined, s.compiles
            seconds = map(show_seconds, (s.trace, s.lower, s.compile, s.first_run))
            rows.append((s.site or "?", *counts, *seconds, s.summary))
        header = ("first call", "traces", "inlined", "compiles", "trace", "lower")
        header += ("compile", "first run", "signature")
        notes = (
            "There is one specialization for each structure and set of statics. It "
            "holds a compiled program for each combination of shapes.",
        )
        if any(s.inlined for s in self.signatures):
            notes += (
                "The time of inlined traces counts for the function around them.",
            )
        return [Table("Signatures", header, rows, notes)]


def cache_info(f: Any) -> CacheInfo:
    """How often a function was traced and compiled, for which calls, and how long it
    took.

    **Arguments:**

    - `f`: a function or method wrapped by `eqx_fastjit.filter_jit`. All wrappers of the
        same function share their traces, as do all instances of a Module class.

    **Returns:**

    A `CacheInfo`: the numbers of traces, compilations and specializations, and for each
    signature the seconds spent in tracing, lowering, XLA's compiler and the first run.
    Raises `TypeError` if `f` was not wrapped by `eqx_fastjit`.
    """
    function = jitted_function(f)
    history = function.history
    kept = [t for t in tuple(history.traces_kept) if not t.failed]
    groups: dict[Any, list[Trace]] = collections.defaultdict(list)
    for trace in kept:
        groups[trace.entries, trace.config].append(trace)
    signatures = [
        Signature(
            summary=_signature_text(group[0], kept[0]),
            site=group[0].site,
            traces=sum(t.retraced for t in group),
            inlined=sum(t.inlined for t in group),
            compiles=sum(t.compile > 0 for t in group),
            **stages(t for t in group if not t.inlined),
        )
        for group in groups.values()
    ]
    return CacheInfo(
        function=history.info.title(),
        traces=history.traces,
        compiles=history.compiles,
        specializations=function.n_specializations(),
        seconds=history.seconds,
        signatures=tuple(signatures),
    )


def _signature_text(trace: Trace, first: Trace) -> str:
    found = nearest(trace, [first])  # not of the first itself
    if found is None or not found[1]:
        return arguments_text(trace.entries)
    return "; ".join(map(str, found[1][:3])) + " ..." * (len(found[1]) > 3)


def arguments_text(entries: tuple[Entry, ...]) -> str:
    """All arguments in one line: leaves as they are, and pytrees by their arrays."""
    out: list[str] = []
    node = ""
    for path, kind, facets in ((e.path, e.kind, dict(e.facets)) for e in entries):
        if is_below(path, node) or "of" in facets:
            continue
        if kind == "array":
            text = f"{facets['dtype']}{facets['shape']}"
        elif kind == "static":
            text = facets["value"]
        elif facets["type"] == "NoneType":
            text = "None"
        else:
            node = path
            arrays = sum(e.kind == "array" for e in entries if is_below(e.path, node))
            text = f"{facets['type'].rpartition('.')[2]} of {plural(arrays, 'array')}"
        out.append(f"{path}: {text}")
    return ", ".join(out)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Why a function was traced or compiled again."""

    function: str
    # The call that it happened in.
    site: Place | None
    # "static-churn", "shape-churn", "weak-type", "dtype-churn", "structure-churn",
    # "fresh-function", "sharding-churn", "config-churn" or "cache-cleared".
    kind: str
    # From the nearest earlier signature; empty if nothing differs.
    differences: tuple[Difference, ...]
    # The call that had the nearest earlier signature.
    earlier_site: Place | None
    # Whether it was traced, not just compiled again.
    retraced: bool
    # Whether it was traced as a part of another function, and not compiled by itself.
    inlined: bool
    # Total cost, and its parts.
    seconds: float
    trace: float
    lower: float
    compile: float
    first_run: float
    advice: str

    def __str__(self) -> str:
        what = "traced" if self.retraced else "compiled (not traced)"
        what += " (inlined)" * self.inlined
        trace, lower, compile, first_run = map(
            show_seconds, (self.trace, self.lower, self.compile, self.first_run)
        )
        return (
            f"{self.function} was {what} again by the call at {self.site or '?'}\n"
            f"  cost: {show_seconds(self.seconds)} (trace {trace}, lower {lower}, "
            f"compile {compile}, first run {first_run})\n{self.reason()}"
        )

    def reason(self) -> str:
        """The cause and what to do, without the call and the cost."""
        lines = [f"  cause: {self.kind}"]
        if self.differences:
            lines.append(f"  unlike the call at {self.earlier_site or '?'}:")
            lines += [f"    {d}" for d in self.differences[:10]]
            if len(self.differences) > 10:
                lines.append(f"    and {len(self.differences) - 10} more")
        lines.append(f"  {self.advice}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_text(str(self))


class Explanations(tuple[Explanation, ...]):
    """The result of `explain`: a tuple with a readable `str`."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "never traced again"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_text(str(self))


class Compared(NamedTuple):
    """The nearest trace before a trace, what differs, and the main difference."""

    old: Trace
    differences: list[Difference]
    main: Difference | None

    @property
    def kind(self) -> str:
        """The kind of cause."""
        return "cache-cleared" if self.main is None else KINDS[self.main.what]


def compare_trace(trace: Trace, earlier: list[Trace]) -> Compared | None:
    """How a trace differs from the nearest of all earlier ones.

    It is compared with traces of the same function or, if there are none, with those of
    other functions that were created by the same line: of callables without a line,
    such as `jax.vmap(model)`, with those that the same line called. Inlined traces are
    only compared with each other, because an inlined trace does not make a call
    compile.

    **Returns:** `None` for a first trace.
    """
    kind_of_trace = origin(trace)
    own = [t for t in earlier if t.function.number == trace.function.number]
    alike = [t for t in own if origin(t) == kind_of_trace]
    if (found := nearest(trace, alike)) is not None:
        if not found[1] and kind_of_trace != "call":
            return None  # JAX's caches are another matter there
        return Compared(*found, main_difference(found[1]))
    place = trace.function.place
    if own or (place is None and trace.site is None):
        return None
    twins = [t for t in earlier if t.key() == trace.key()]
    if place is None:
        twins = [t for t in twins if t.site == trace.site]
    if (found := nearest(trace, twins)) is None:
        return None
    name, where = trace.function.name, f"for the call at {trace.site}"
    if place is not None:
        name, where = place.function, f"at {place}"
    made = Difference(name, "function", "", f"created again {where}")
    return Compared(found[0], [made, *found[1]], made)


def explain_trace(trace: Trace, earlier: list[Trace]) -> Explanation | None:
    """Why a trace happened, given all earlier ones; `None` for a first one."""
    if (found := compare_trace(trace, earlier)) is None:
        return None
    old, place = found.old, trace.function.place
    return Explanation(
        function=trace.title(),
        site=trace.site,
        kind=found.kind,
        differences=tuple(found.differences),
        earlier_site=old.site,
        retraced=trace.retraced,
        inlined=trace.inlined,
        seconds=trace.seconds,
        **stages([trace]),
        advice=advice(
            found.kind,
            found.main,
            site=trace.site and trace.site[:2],
            function=trace.function.name,
            defined=place and place[:2],
            earlier=old.site and old.site[:2],
            differences=found.differences,
        ),
    )


def cause_of(trace: Trace, explanation: Explanation | Compared | None) -> str:
    """In a word, why a trace happened."""
    if trace.failed:
        return "failed"
    if trace.inlined:
        return "inlined"
    return "first-call" if explanation is None else explanation.kind


def explain_all(traces: list[Trace]) -> list[tuple[Trace, Explanation | None]]:
    """Each trace with why it happened; `None` for one that had to be."""
    by_key: dict[Any, list[Trace]] = collections.defaultdict(list)
    out: list[tuple[Trace, Explanation | None]] = []
    for trace in traces:
        earlier = by_key[trace.key()]
        out.append((trace, None if trace.failed else explain_trace(trace, earlier)))
        earlier.append(trace)
    return out


def explain(f: Any) -> Explanations:
    """Why a function was traced again: an explanation of each trace after the first.

    **Arguments:**

    - `f`: a function or method wrapped by `eqx_fastjit.filter_jit`.

    **Returns:**

    A tuple of `Explanation`s, in order. Each has the differences from the nearest
    earlier signature by leaf path, the line of the call, the seconds that it took, and
    what to do about it. The tuple is empty if `f` was traced once. If the same line
    created other functions before (a lambda in a loop), the first trace is explained
    too. Only the last 256 traces are kept. Raises `TypeError` if `f` was not wrapped by
    `eqx_fastjit`.
    """
    history = jitted_function(f).history
    key = history.info.key()
    own = {t.number: t for t in tuple(history.traces_kept)}
    # A trace may be in the function's own list alone, the process having had too many.
    related = {t.number: t for t in tuple(_record.traces) if t.function.key() == key}
    everything = sorted((related | own).values(), key=lambda t: t.number)
    return Explanations(
        explanation
        for trace, explanation in explain_all(everything)
        if explanation is not None and trace.number in own
    )


@dataclasses.dataclass(frozen=True)
class LedgerRow:
    """All traces of the functions that one line of source created."""

    function: str
    # How many function objects: more than one if the line ran more than once.
    functions: int
    traces: int
    compiles: int
    # In total. Inlined traces count for the function around them.
    seconds: float
    # Calls that it was traced or compiled in, most frequent first.
    sites: tuple[tuple[str, int], ...]
    # Why, most frequent first; "first-call" if unavoidable, "inlined" for traces that
    # are a part of another function.
    causes: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Ledger(Report):
    """All jitted functions of the process, the most expensive first."""

    rows: tuple[LedgerRow, ...]

    def title(self) -> str:
        """The totals."""
        seconds = sum(row.seconds for row in self.rows)
        return f"{plural(len(self.rows), 'jitted function')}, {show_seconds(seconds)}"

    def tables(self) -> list[Table]:
        """The functions."""
        rows: list[Sequence[Any]] = []
        for row in self.rows:
            counts = row.functions, row.traces, row.compiles
            causes = ", ".join(f"{n} {cause}" for cause, n in row.causes)
            calls = ", ".join(f"{site} ({n})" for site, n in row.sites[:3])
            calls += ", ..." * (len(row.sites) > 3)
            seconds = show_seconds(row.seconds)
            rows.append((row.function, *counts, seconds, causes, calls))
        header = ("function", "objects", "traces", "compiles", "time", "causes")
        return [Table("Functions, most expensive first", (*header, "calls"), rows)]


def ledger() -> Ledger:
    """All functions that were traced or compiled in this process.

    **Returns:**

    A `Ledger`, with a row for each line of source that created such functions. The most
    expensive are first. Rows have counts, seconds, calls and causes. Functions that no
    longer exist are included. It covers the last 4,096 traces of the process.
    """
    groups: dict[Any, Any] = collections.defaultdict(list)
    for trace, why in explain_all(list(_record.traces)):
        groups[trace.key()].append((trace, why))
    rows = [_ledger_row(group) for group in groups.values()]
    return Ledger(tuple(sorted(rows, key=lambda row: -row.seconds)))


def _ledger_row(group: list[tuple[Trace, Explanation | None]]) -> LedgerRow:
    traces = [trace for trace, _ in group]
    causes = collections.Counter(cause_of(t, e) for t, e in group)
    sites = collections.Counter(str(t.site or "?") for t in traces)
    return LedgerRow(
        function=traces[0].title(),
        functions=len({t.function.number for t in traces}),
        traces=sum(t.retraced and not t.failed for t in traces),
        compiles=sum(t.compile > 0 for t in traces),
        seconds=sum(t.seconds for t in traces if not t.inlined),
        sites=tuple(sites.most_common()),
        causes=tuple(causes.most_common()),
    )
