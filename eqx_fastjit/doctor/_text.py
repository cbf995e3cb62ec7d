"""The report as text: in colour on a terminal that rich knows, plain elsewhere."""

import linecache
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple, TextIO

from eqx_fastjit._units import plural, show_seconds

from ._report import (
    Finding,
    FunctionRow,
    headline,
    Hint,
    is_good,
    Report,
    TimePart,
    TimeSpent,
)
from ._sites import shorten


# Rows of the table of functions; the JSON and HTML reports have them all.
_MAX_ROWS = 10
_STYLES = {"high": "bold red", "medium": "yellow", "low": "cyan"}


def place(file: str | None, line: int | None) -> str:
    """`file:line`, with a short path."""
    return "?" if file is None else f"{shorten(file)}:{line}"


def summary(report: Report) -> str:
    """What the program spent on compiling, in a line."""
    compiles = sum(row.compiles for row in report.functions)
    seconds = sum(row.trace + row.lower + row.compile for row in report.functions)
    return (
        f"ran for {show_seconds(report.seconds)}, of which {show_seconds(seconds)} to "
        f"trace, lower and compile {plural(compiles, 'program')}"
    )


def write_text(report: Report, stream: TextIO) -> None:
    """Write the report for people."""
    if stream.isatty():
        try:
            from rich.console import Console
        except ImportError:
            pass
        else:
            _write_rich(report, Console(file=stream))
            return
    stream.write("\n".join(_plain_lines(report)) + "\n")
    stream.flush()


def _title(report: Report) -> str:
    interim = "so far, " if report.exit_code is None else ""
    return f"eqx-fastjit doctor: {report.program}: {interim}{headline(report)}"


# Parts of the run below this share are added up.
_LEAST_SHARE = 0.01


class TimeRow(NamedTuple):
    """A part of the run, in words."""

    name: str
    seconds: str
    share: str
    label: str
    # Where most of it went.
    lines: tuple[str, ...]


def time_rows(time: TimeSpent) -> list[TimeRow]:
    """The parts of a run that are worth a line."""
    least = _LEAST_SHARE * time.seconds
    shown = [part for part in time.parts if part.seconds >= least]
    rest = sum(part.seconds for part in time.parts if part.seconds < least)
    if rest > 0.0005:
        shown.append(TimePart("rest", "the rest", rest, ()))
    return [
        TimeRow(
            part.name,
            show_seconds(part.seconds),
            f"{100 * part.seconds / time.seconds:.0f}%",
            part.label,
            tuple(
                f"{place(x.file, x.line)} {show_seconds(x.seconds)}" for x in part.lines
            ),
        )
        for part in shown
    ]


def _source(finding: Finding | Hint) -> str:
    if finding.file is None or finding.line is None:
        return ""
    return linecache.getline(finding.file, finding.line).strip()


def _plain_lines(report: Report) -> Iterator[str]:
    yield ""
    yield _title(report)
    yield summary(report)
    yield from _plain_time(report.time)
    for f in report.findings:
        yield ""
        lost = "" if f.seconds is None else f"  {show_seconds(f.seconds)} lost"
        yield f"{f.kind} ({f.severity})  {place(f.file, f.line)}{lost}"
        if source := _source(f):
            yield f"    > {source}"
        for text in (f.message, f"Fix: {f.fix}"):
            yield from _wrapped(text)
    if report.hints:
        yield from ("", "What would help:")
    for hint in report.hints:
        at = "" if hint.file is None else f"  {place(hint.file, hint.line)}"
        yield ""
        yield f"{hint.kind}{at}  about {show_seconds(hint.seconds)}"
        if source := _source(hint):
            yield f"    > {source}"
        yield from _wrapped(f"{hint.message}. {hint.fix}")
    if report.functions:
        yield ""
        yield from _plain_table(report.functions)
    for note in report.notes:
        yield from textwrap.wrap(f"Note: {note}", 88)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 84, initial_indent="  ", subsequent_indent="  ")


def _plain_time(time: TimeSpent) -> Iterator[str]:
    rows = time_rows(time)
    if not rows:
        return
    widths = [max(len(row[i]) for row in rows) for i in (1, 2)]
    for row in rows:
        text = f"{row.seconds:>{widths[0]}}  {row.share:>{widths[1]}}  {row.label}"
        yield f"  {text}{':  ' * bool(row.lines)}{', '.join(row.lines)}"


_HEADER = ("time", "traces", "compiles", "function", "why")


def _cells(row: FunctionRow) -> tuple[str, str, str, str, str]:
    where = "" if row.file is None else f" ({place(row.file, row.line)})"
    causes = ", ".join(f"{n} {cause}" for cause, n in row.causes.items())
    return (
        show_seconds(row.seconds),
        str(row.traces),
        str(row.compiles),
        f"{row.function}{where}",
        causes,
    )


def _plain_table(rows: tuple[FunctionRow, ...]) -> Iterator[str]:
    table = [_HEADER, *map(_cells, rows[:_MAX_ROWS])]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        padded = [
            x.ljust(w) if i >= 3 else x.rjust(w)
            for i, (x, w) in enumerate(zip(cells, widths, strict=True))
        ]
        yield "  ".join(padded).rstrip()
    if len(rows) > _MAX_ROWS:
        yield f"and {len(rows) - _MAX_ROWS} more"


def _write_rich(report: Report, console: Any) -> None:
    from rich import box
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console.print()
    console.print(Text(_title(report), "bold green" if is_good(report) else "bold"))
    console.print(Text(summary(report), "dim"))
    if report.time.parts:
        grid = Table.grid(padding=(0, 2))
        for justify in ("right", "right", "left", "left"):
            grid.add_column(justify=justify)
        for row in time_rows(report.time):
            lines = Text(", ".join(row.lines), "dim")
            grid.add_row(row.seconds, row.share, Text(row.label), lines)
        console.print(Padding(grid, (0, 2)))
    for f in report.findings:
        console.print()
        head = Text.assemble(
            (f.kind, _STYLES[f.severity]), "  ", (place(f.file, f.line), "bold")
        )
        if f.seconds is not None:
            head.append(f"  {show_seconds(f.seconds)} lost", "dim")
        console.print(head)
        if source := _source(f):
            console.print(Padding(Text(source, "italic"), (0, 4)))
        console.print(Padding(Text(f.message), (0, 2)))
        console.print(Padding(Text.assemble(("Fix: ", "green"), f.fix), (0, 2)))
    if report.hints:
        console.print()
        console.print(Text("What would help", "bold"))
    for hint in report.hints:
        at = "" if hint.file is None else place(hint.file, hint.line)
        console.print()
        cost = f"  about {show_seconds(hint.seconds)}"
        console.print(
            Text.assemble((hint.kind, "cyan"), "  ", (at, "bold"), (cost, "dim"))
        )
        if source := _source(hint):
            console.print(Padding(Text(source, "italic"), (0, 4)))
        console.print(Padding(Text(f"{hint.message}. {hint.fix}"), (0, 2)))
    if report.functions:
        table = Table(box=box.SIMPLE)
        for i, name in enumerate(_HEADER):
            table.add_column(name, justify="left" if i >= 3 else "right")
        for row in report.functions[:_MAX_ROWS]:
            table.add_row(*map(Text, _cells(row)))
        console.print(table)
        if len(report.functions) > _MAX_ROWS:
            console.print(Text(f"and {len(report.functions) - _MAX_ROWS} more"))
    for note in report.notes:
        console.print(Text(f"Note: {note}", "dim"))
