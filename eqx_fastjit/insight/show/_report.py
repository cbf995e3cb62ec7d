"""What the doctor has to say, as one data structure. `_text` and `_page` show it, and
`as_json` writes it.
"""

import dataclasses
import math
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from eqx_fastjit.insight._words import plural, show_seconds
from eqx_fastjit.insight.compare._table import tables_of
from eqx_fastjit.insight.record._file import Run
from eqx_fastjit.insight.record._why import is_operation, stages_of
from eqx_fastjit.insight.rules._functions import row_of
from eqx_fastjit.insight.rules._rules import Row
from eqx_fastjit.insight.rules.each_call import row_of_waits
from eqx_fastjit.insight.rules.outside_of_jit import (
    needed_rows,
    operation_rows,
    program_key,
)
from eqx_fastjit.insight.rules.within_program import (
    cache_rows,
    constant_rows,
    look_at,
    loop_rows,
)
from eqx_fastjit.insight.rules.wrong import stale_row


# Seconds, and the share of a run, below which nothing has a row.
_LEAST_SECONDS, _LEAST_SHARE = 0.1, 0.01
# Programs that run at the same time, for each core, and the share of its time that a
# program had the CPU, from which and up to which this is said.
_BUSY, _SLOWED = 1.5, 0.8


class Time(NamedTuple):
    """A part of the run's time."""

    name: str
    label: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything that the doctor has to say."""

    run: Run
    # The seconds below which nothing has a row.
    limit: float
    # What makes results wrong; by what it saves, later runs last; what is only a price.
    rows: tuple[Row, ...]
    time: tuple[Time, ...]
    compilations: int
    programs: int
    # Seconds of compilations of a program that was compiled before.
    again: float
    # That other programs slow it down, in words.
    busy: str = ""
    # Of the JSON.
    schema: int = 5

    @property
    def findings(self) -> tuple[Row, ...]:
        """The rows that can be mended, but for what is saved in later runs."""
        return tuple(x for x in self.rows if x.is_wrong or x.saves > x.later)


def headline(report: Report) -> str:
    """The report in a line."""
    cpu = report.run.cpu_seconds
    text = f"ran for {show_seconds(report.run.seconds)}"
    text += f" ({show_seconds(cpu)} of CPU{report.busy}); " if cpu else "; "
    if not report.compilations:
        return f"{text}nothing was compiled"
    seconds = show_seconds(sum(e.seconds for e in report.run.events))
    again = show_seconds(report.again) if report.again else "none"
    total = sum(x.saves - x.later for x in report.rows)
    saved = f". The rows save {show_seconds(total)}" if total > 0 else ""
    return (
        f"{text}{plural(report.compilations, 'compilation')} of "
        f"{plural(report.programs, 'program')} took {seconds}, {again} of that to "
        f"compile a program again{saved}"
    )


def make_report(run: Run, least: float | None = None) -> Report:
    """Make the report on a run, as far as it is known.

    `least`: the seconds below which nothing has a row; by default 0.1, or a hundredth
    of a longer run.
    """
    limit = max(_LEAST_SECONDS, _LEAST_SHARE * run.seconds) if least is None else least
    operations = [e for e in run.events if is_operation(e)]
    # Seconds of compilations that no row spares.
    left = {e: e.seconds for e in run.events if e.compile and not e.failed}
    tables = [table for table, _ in tables_of(run.events, run.before)]
    found = [*map(row_of, tables)]
    found += operation_rows(run.events, lambda e: look_at(run, e).operation)
    rows: list[Row] = []
    for row, spared in filter(None, found):
        rows.append(row)
        if row.saves >= limit:
            for event in spared:
                left.pop(event, None)
    rows += needed_rows([e for e in operations if e in left])
    rows += [*loop_rows(run, left), *constant_rows(run, left), *cache_rows(run, left)]
    busy = _busy(run)
    if run.device is not None and not busy:  # of others' work, waits are not known
        rows += row_of_waits(run.waits, run.device.ahead)
    rows = [x for x in rows if x.saves > 0 or x.wanted > 0]
    rows = [x for x in rows if max(x.saves, x.wanted) >= limit]
    programs: list[tuple[Any, float]] = [
        (program_key(e), e.seconds) for e in operations
    ]
    for table in tables:
        known = zip(table.programs, table.rows, strict=True)
        programs += [((id(table), program), row.seconds) for program, row in known]
    first = dict(reversed(programs))
    return Report(
        run=run,
        limit=limit,
        rows=(*map(stale_row, run.stale), *sorted(rows, key=_order)),
        time=tuple(_time(run)),
        compilations=sum(e.compile > 0 for e in run.events),
        programs=len(first),
        again=math.fsum(x for _, x in programs) - math.fsum(first.values()),
        busy=busy,
    )


def _order(row: Row) -> tuple[bool, bool, float]:
    return not row.saves, row.later > 0, -(row.saves or row.wanted)


def _busy(run: Run) -> str:
    """Whether other programs keep the machine busy, so that seconds say little."""
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    is_slowed = 0 < run.cpu_seconds < _SLOWED * run.seconds
    if load <= _BUSY * cores or not is_slowed:
        return ""
    return (
        f": other programs keep this machine busy, with a load of {load:.1f} on "
        f"{plural(cores, 'core')}, so all seconds are longer"
    )


# --- where the time went --------------------------------------------------------------

STAGES = {"trace": "tracing", "lower": "lowering", "compile": "XLA's compiler"}


def _time(run: Run) -> Iterator[Time]:
    """Parts that add up to the seconds of the run, the rest last."""
    # Other threads compile at the same time as the main one does something else.
    main = [e for e in run.events if e.thread == "MainThread"]
    parts = [
        Time(name, label, sum(stages_of(e)[name] for e in main))
        for name, label in STAGES.items()
    ]
    waiting = sum(w.seconds for w in run.waits)
    parts.append(Time("wait", "waiting for the device", waiting))
    known = sum(part.seconds for part in parts)
    if known > run.seconds > 0:  # waits of several threads, say
        parts = [x._replace(seconds=x.seconds * run.seconds / known) for x in parts]
    yield from sorted((x for x in parts if x.seconds > 0), key=lambda x: -x.seconds)
    yield Time("rest", "imports and other Python", max(0.0, run.seconds - known))
