"""The report as text, by rich: in colour on a terminal, plain elsewhere."""

from collections.abc import Iterator
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ._causes import Finding
from ._explain import show_calls
from ._report import footer, headline, Report
from ._source import source_line
from ._words import show_place, show_seconds


# Rows of the table of functions; the page and the JSON have them all.
_ROWS = 10
# Of each part of the run.
_LINES = 2


def write_text(report: Report, stream: TextIO) -> None:
    """Write the report for people."""
    console = Console(file=stream, highlight=False, soft_wrap=False)
    for part in _parts(report):
        console.print(part)


def _parts(report: Report) -> Iterator[Any]:
    style = "bold" if report.findings else "bold green"
    yield ""
    yield Text(f"eqx-fastjit doctor: {report.run.program}", style)
    yield Text(headline(report), style)
    yield Padding(_time(report), (0, 2))
    if report.run.device is not None:
        yield Padding(Text(str(report.run.device)), (0, 2))
    for finding in report.findings:
        yield from _finding(finding)
    if report.helps:
        yield ""
        yield Text("What would help, each by itself, and by about how much", "bold")
    for item in report.helps:
        yield from _finding(item)
    if report.functions:
        yield _functions(report)
    for note in (*report.run.notes, footer(report)):
        yield Text(note, "dim")


def _time(report: Report) -> Table:
    grid = Table.grid(padding=(0, 2))
    for justify in ("right", "right", "left"):
        grid.add_column(justify=justify)
    for part in report.time:
        share = f"{part.seconds / report.run.seconds:.0%}" if report.run.seconds else ""
        lines = [f"{text} {show_seconds(x)}" for text, x in part.lines[:_LINES]]
        label = Text.assemble(part.label, (f"  {', '.join(lines)}", "dim"))
        grid.add_row(show_seconds(part.seconds), share, label)
    return grid


def _finding(finding: Finding) -> Iterator[Any]:
    yield ""
    where = f"  {show_place(finding.line)}" if finding.line else ""
    yield Text.assemble((finding.title(), "bold yellow"), (where, "bold"))
    if source := source_line(finding.line):
        yield Padding(Text(source, "italic"), (0, 4))
    yield Padding(Text(finding.says), (0, 2))
    if finding.calls:
        yield Padding(Text(f"Called: {show_calls(finding)}.", "dim"), (0, 2))
    yield Padding(Text.assemble(("Fix: ", "green"), finding.fix), (0, 2))


def _functions(report: Report) -> Table:
    rest = len(report.functions) - _ROWS
    more = f"and {rest} more, which --html and --json have" if rest > 0 else None
    table = Table(box=box.SIMPLE, caption=more, caption_justify="left")
    for name in ("time", "traces", "compiles"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("function", overflow="fold")
    table.add_column("why", overflow="fold")
    for row in report.functions[:_ROWS]:
        numbers = show_seconds(row.seconds), str(row.traces), str(row.compiles)
        name = f"{row.function} ({row.place})" if row.place else row.function
        table.add_row(*numbers, Text(name), Text(row.why()))
    return table
