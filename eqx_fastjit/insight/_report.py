"""What the doctor has to say, as one data structure. `_text` and `_page` show it, and
`as_json` writes it.
"""

import collections
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from eqx_fastjit._facts import Place

from ._advice import Diagnosis, finding_of
from ._causes import Finding
from ._events import Event
from ._file import Run
from ._first import constant_findings, helps, look_at
from ._groups import Group, group
from ._outside import (
    of_several_lines,
    operation_findings,
    operations_following,
    start_of,
)
from ._waits import finding_of_waits
from ._warm import warm_findings
from ._why import is_operation, line_of, name_of, OUTSIDE, stages_of, why
from ._words import (
    listed,
    plural,
    show_bytes,
    show_chain,
    show_place,
    show_seconds,
    times,
)


# Seconds, and the share of a run, from which something is a finding.
LIMIT_SECONDS = 1.0
LIMIT_SHARE = 0.05
# Lines that are named for a part of the run.
_LINES = 5
# Compiled programs of one finding whose memory may matter.
_MANY = 32


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the run's time."""

    name: str
    label: str
    seconds: float
    # Where most of it went, in words, with the seconds.
    lines: tuple[tuple[str, float], ...] = ()

    def scaled(self, by: float) -> "Part":
        """All seconds times this."""
        lines = tuple((text, seconds * by) for text, seconds in self.lines)
        return Part(self.name, self.label, self.seconds * by, lines)


@dataclasses.dataclass(frozen=True)
class FunctionRow:
    """The functions that one line made. Seconds are without functions inside."""

    function: str
    place: str
    traces: int
    compiles: int
    seconds: float
    # How often it was traced or compiled for which reason.
    causes: dict[str, int]
    # The user's lines that called it, and how often that compiled.
    calls: dict[str, int]

    def why(self, most: int = 4) -> str:
        """The causes with their counts: `1 first call, 3 shape`."""
        return listed((f"{n} {cause}" for cause, n in self.causes.items()), most)


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything that the doctor has to say."""

    run: Run
    # The seconds from which a group of compilations is a finding.
    limit: float
    # What can be mended, what saves most first. What makes results wrong comes before.
    findings: tuple[Finding, ...]
    # The price of what is wanted: models of several sizes, say.
    prices: tuple[Finding, ...]
    # What would save time although nothing is wrong.
    helps: tuple[Finding, ...]
    # The groups that cost less, first calls included.
    others: tuple[Finding, ...]
    time: tuple[Part, ...]
    functions: tuple[FunctionRow, ...]
    # Of the JSON.
    schema: int = 4

    @property
    def rows(self) -> tuple[Finding, ...]:
        """Everything that has a row."""
        return self.findings + self.helps + self.prices

    @property
    def saves(self) -> float:
        """The seconds of this run that can be saved in all."""
        return sum(f.saves for f in self.findings + self.helps if not f.is_later)

    @property
    def saves_later(self) -> float:
        """The seconds that are saved in later runs."""
        return sum(f.saves for f in self.helps if f.is_later)


def headline(report: Report) -> str:
    """The report in a line."""
    n = sum(f.compiles for f in report.functions)
    seconds = show_seconds(sum(f.seconds for f in report.functions))
    found = "no finding"
    if report.findings:
        found = plural(len(report.findings), "finding")
    elif report.rows:
        found = f"no finding, {plural(len(report.rows), 'other row')}"
    saved = " and ".join(_saved(report))
    of_which = f", of which {saved} can be saved" if saved else ""
    ran = f"ran for {show_seconds(report.run.seconds)}{of_which}"
    return f"{ran}: {found}; {plural(n, 'compilation')} took {seconds}"


def _saved(report: Report) -> Iterator[str]:
    """What can be saved, in words: in this run, by other data, and in later runs."""
    otherwise = sum(f.otherwise for f in report.findings + report.helps)
    if report.saves:
        is_all = otherwise >= 0.99 * report.saves
        part = "all" if is_all else show_seconds(otherwise)
        part = f" ({part} of it if you cut, pad or cast data)"
        yield f"{show_seconds(report.saves)}{part if otherwise else ''}"
    if report.saves_later:
        yield f"{show_seconds(report.saves_later)} in later runs"


def footer(report: Report) -> str:
    """What makes a finding."""
    least = f"{LIMIT_SECONDS:g} s, or {LIMIT_SHARE:.0%} of a shorter run"
    parts = [x for row in report.rows for x in row.parts or (row,)]
    has_prices = any(x.seconds and not x.saves for x in parts)
    wanted = " In brackets is what has to be compiled, unless an edit below it fits."
    return (
        f"A finding is a fault that costs {least}: here {show_seconds(report.limit)}. "
        "Other rows are no faults, but may save more. Each second is saved by one row."
        f"{wanted * has_prices}"
    )


def make_report(run: Run) -> Report:
    """Make the report on a run, as far as it is known."""
    limit = min(LIMIT_SECONDS, LIMIT_SHARE * run.seconds)
    operations = [e for e in run.events if is_operation(e)]
    groups = group(e for e in run.events if not is_operation(e))
    grouped = [e for g in groups for e in g.events]
    repeated, starting = operation_findings(operations, run)
    findings: list[Finding] = []
    large: list[Group] = []
    diagnoses: list[Diagnosis] = []
    for g in (x for x in groups if not x.is_first):
        diagnosis = Diagnosis(g)
        following = operations_following(starting, run, diagnosis.lengths)
        found = _with_loop(finding_of(diagnosis), g.events, run)
        found = _with_operations(found, following)
        if found.saves >= limit:
            large.append(g)
            diagnoses += [diagnosis] if g.table else []
            findings.append(found)
            told = [e for _, *again in following for e in again]
            starting = [e for e in starting if e not in told]
    small = [g for g in groups if g not in large]
    remaining = [e for g in small for e in g.events]
    remaining += [e for x in diagnoses for e in x.left]
    by_data = [e for x in diagnoses for e in x.left_by_data]
    first, explained = constant_findings(run, remaining, limit)
    rest = [g for g in (x.without(explained) for x in small) if g.events]
    prices = [g for g in rest if g.seconds >= limit and not g.is_first]
    others = [finding_of(Diagnosis(g)) for g in rest if g not in prices]
    minor = [x for x in repeated if x.saves < limit]
    repeated = [x for x in repeated if x.saves >= limit]
    if sum(x.saves for x in minor) >= limit:
        repeated.append(of_several_lines(minor))
    else:
        others += minor
    repeated, warm, starting = warm_findings(run, repeated, starting, limit)
    others += [start_of(starting)] if starting else []
    findings += [*first, *_waiting(run, limit, has_operations=bool(warm))]
    findings += repeated
    findings = [_with_memory(x, run) for x in findings]
    wanted = [e for x in prices for e in x.events]
    elsewhere = {e.number for e in (*wanted, *explained)}
    compiled = [e for e in (*remaining, *starting) if e.number not in elsewhere]
    helping = helps(run, compiled, wanted, by_data, limit)
    helping += warm
    return Report(
        run=run,
        limit=limit,
        findings=(*run.stale, *sorted(findings, key=lambda x: -x.saves)),
        prices=tuple(finding_of(Diagnosis(g)) for g in prices),
        others=tuple(sorted(others, key=lambda x: -x.seconds)),
        time=tuple(_time(run)),
        helps=tuple(sorted(helping, key=lambda x: -x.saves)),
        functions=tuple(_functions([*grouped, *operations])),
    )


def _with_loop(finding: Finding, events: Iterable[Event], run: Run) -> Finding:
    """With the line of the loop that runs as often as a number says."""
    if "loop count" not in {finding.attribute, *(x.attribute for x in finding.parts)}:
        return finding
    times: dict[Place, set[int]] = collections.defaultdict(set)
    for event in events:
        for loop in look_at(run, event).loops:
            times[loop.place].add(loop.iterations)
    lines = listed(show_place(place) for place, n in times.items() if len(n) > 1)
    says = f"{finding.says} It is the loop at {lines}." if lines else finding.says
    return dataclasses.replace(finding, says=says)


def _with_operations(finding: Finding, following: list[list[Event]]) -> Finding:
    """With what is compiled outside of jit for the same lengths.

    `following`: of each operation at a line, its compilations, the first included.
    """
    shown: list[str] = []
    for first, *again in following:
        seconds = sum(e.seconds for e in again)
        where = f"`{first.function.name}` at {show_place(line_of(first))}"
        shown.append(f"{where} ({times(len(again))}, {show_seconds(seconds)})")
        otherwise = seconds if finding.otherwise else 0.0
        finding = dataclasses.replace(
            finding,
            seconds=finding.seconds + seconds,
            saves=finding.saves + seconds,
            otherwise=finding.otherwise + otherwise,
            count=finding.count + len(again),
            functions=finding.functions | {first.function.name: len(again)},
        )
    if not shown:
        return finding
    says = (
        f"{finding.says} Operations outside of jit compile for the same lengths, "
        f"and only once if what they make has one length, too: {listed(shown)}."
    )
    return dataclasses.replace(finding, says=says)


def _with_memory(finding: Finding, run: Run) -> Finding:
    """With what many compiled programs hold."""
    held, size = run.held
    if not _MANY <= finding.count <= held:
        return finding
    code = f", about {show_bytes(size / held * finding.count)} of code" if size else ""
    says = f"{finding.says} JAX keeps all {finding.count} programs in memory{code}."
    return dataclasses.replace(finding, says=says)


def _waiting(run: Run, limit: float, *, has_operations: bool) -> list[Finding]:
    """The finding of the waits, if it is worth to do without them.

    While the device waits for operations that have a row, it waits for nothing else.
    """
    if run.device is None:
        return []
    elsewhere = run.device.operations if has_operations else 0.0
    saves = run.device.saved_by_running_ahead(elsewhere)
    found = finding_of_waits(run.waits, saves)
    return [found] if found is not None and found.saves >= limit else []


# --- where the time went --------------------------------------------------------------

STAGES = {"trace": "tracing", "lower": "lowering", "compile": "XLA's compiler"}


def _time(run: Run) -> Iterator[Part]:
    """Parts that add up to the seconds of the run, the rest last."""
    # Other threads compile at the same time as the main one does something else.
    main = [e for e in run.events if e.thread == "MainThread"]
    parts = [
        Part(name, label, sum(stages_of(e)[name] for e in main), _costliest(main, name))
        for name, label in STAGES.items()
    ]
    by_package: collections.Counter[str] = collections.Counter()
    for found in run.imports:
        by_package[found.name.partition(".")[0]] += found.seconds
    importing = tuple(by_package.most_common(_LINES))
    parts.append(Part("import", "importing", by_package.total(), importing))
    waits = [w for w in run.waits if w.seconds]
    waited = tuple((f"{show_place(w.place)} {w.what}", w.seconds) for w in waits)
    waiting = sum(w.seconds for w in run.waits)
    parts.append(Part("wait", "waiting for the device", waiting, waited[:_LINES]))
    known = sum(part.seconds for part in parts)
    if known > run.seconds > 0:  # waits of several threads, say
        scale = run.seconds / known
        parts = [part.scaled(scale) for part in parts]
    yield from sorted(filter(lambda p: p.seconds > 0, parts), key=lambda p: -p.seconds)
    spots: collections.Counter[str] = collections.Counter()
    for x in run.spots:
        spots[f"{show_place(x.place)} {x.what}"] += x.seconds
    lines = tuple(spots.most_common(_LINES))
    yield Part("rest", "the rest", max(0.0, run.seconds - known), lines)


def _costliest(events: Iterable[Event], stage: str) -> tuple[tuple[str, float], ...]:
    lines: collections.Counter[str] = collections.Counter()
    for e in events:
        line = f"{show_place(line_of(e))} {name_of(e.function)}"
        lines[line] += stages_of(e)[stage]  # pyright: ignore
    return tuple((text, x) for text, x in lines.most_common(_LINES) if x > 0)


# --- tables ---------------------------------------------------------------------------


def _functions(events: Iterable[Event]) -> list[FunctionRow]:
    rows: dict[Any, list[Event]] = {}
    for e in events:
        rows.setdefault(() if is_operation(e) else e.function.key(), []).append(e)
    return sorted(map(_function_row, rows.values()), key=lambda row: -row.seconds)


def _function_row(events: list[Event]) -> FunctionRow:
    first = events[0]
    place = first.function.place
    causes = collections.Counter(
        name_of(e.function) if is_operation(e) else why(e) for e in events
    )
    calls = collections.Counter(show_chain(e.frames, 1) for e in events)
    return FunctionRow(
        function=f"({OUTSIDE})" if is_operation(first) else name_of(first.function),
        place=show_place(place) if place else "",
        traces=sum(e.traced and not e.failed for e in events),
        compiles=sum(e.compile > 0 for e in events),
        seconds=sum(e.seconds for e in events),
        causes=dict(causes.most_common()),
        calls=dict(calls.most_common()),
    )
