"""What the doctor has to say, as one data structure. `_text` and `_page` show it, and
`as_json` writes it.
"""

import dataclasses
import math
from typing import Any

from eqx_fastjit.insight._words import plural, show_seconds
from eqx_fastjit.insight.record._run import Run
from eqx_fastjit.insight.record._time import Time, times_of
from eqx_fastjit.insight.record._why import is_operation
from eqx_fastjit.insight.rules._classes import CLASSES
from eqx_fastjit.insight.rules._rules import Case, Row
from eqx_fastjit.insight.rules.outside_of_jit import program_key


# Seconds, and the share of a run, below which nothing has a row.
_LEAST_SECONDS, _LEAST_SHARE = 0.1, 0.01


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
    schema: int = 7

    @property
    def findings(self) -> tuple[Row, ...]:
        """The rows that can be mended, but for what is saved in later runs."""
        return tuple(x for x in self.rows if x.is_wrong or x.bytes or x.saves > x.later)


def headline(report: Report) -> str:
    """The report in a line."""
    cpu = report.run.cpu_seconds
    text = f"ran for {show_seconds(report.run.seconds)}"
    text += f" ({show_seconds(cpu)} of CPU{report.busy}); " if cpu else "; "
    if not report.compilations:
        return f"{text}nothing was compiled"
    seconds = show_seconds(sum(e.seconds for e in report.run.events))
    again = show_seconds(report.again) if report.again else "none"
    # What Equinox would have taken longer is no part of the run.
    total = sum(x.saves - x.later for x in report.rows if x.seconds)
    saved = f". The rows save {show_seconds(total)} of the run"
    saved = saved if total > 0 else ""
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
    case = Case(run, limit)
    rows = [row for rules in CLASSES for row in rules.rows(case)]
    shown = [
        x for x in rows if x.is_wrong or x.bytes or 0 < max(x.saves, x.wanted) >= limit
    ]

    programs: list[tuple[Any, float]] = [
        (program_key(e), e.seconds) for e in run.events if is_operation(e)
    ]
    for table in case.tables:
        known = zip(table.programs, table.rows, strict=True)
        programs += [((id(table), program), row.seconds) for program, row in known]
    first = dict(reversed(programs))
    return Report(
        run=run,
        limit=limit,
        rows=tuple(sorted(shown, key=_order)),
        time=tuple(times_of(run)),
        compilations=sum(e.compile > 0 for e in run.events),
        programs=len({x for x, seconds in programs if seconds}),
        again=math.fsum(x for _, x in programs) - math.fsum(first.values()),
        busy=run.busy,
    )


def _order(row: Row) -> tuple[bool, bool, bool, float]:
    is_price = not (row.saves or row.is_wrong or row.bytes)
    return not row.is_wrong, is_price, row.later > 0, -(row.saves or row.wanted)
