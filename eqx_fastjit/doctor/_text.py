"""The report as text: in colour on a terminal that rich knows, plain elsewhere."""

import linecache
import textwrap
from collections.abc import Iterator, Sequence
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
    if seconds > report.seconds:
        return (
            f"ran for {show_seconds(report.seconds)}; its threads took "
            f"{show_seconds(seconds)} to trace, lower and compile "
            f"{plural(compiles, 'program')}"
        )
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
        lost = "" if f.seconds is None else f"  {show_seconds(f.seconds)} lost"
        title = f"{f.kind} ({f.severity})  {place(f.file, f.line)}{lost}"
        yield from _plain_card(title, f, f.message, f"Fix: {f.fix}")
    if report.hints:
        yield from ("", "What would help:")
    for hint in report.hints:
        at = "" if hint.file is None else f"  {place(hint.file, hint.line)}"
        title = f"{hint.kind}{at}  about {show_seconds(hint.seconds)}"
        yield from _plain_card(title, hint, f"{hint.message}. {hint.fix}")
    if report.functions:
        yield ""
        yield from _plain_table(report.functions)
    for note in report.notes:
        yield from textwrap.wrap(f"Note: {note}", 88)


def _plain_card(title: str, of: Finding | Hint, *texts: str) -> Iterator[str]:
    yield ""
    yield title
    if source := _source(of):
        yield f"    > {source}"
    for text in texts:
        yield from textwrap.wrap(text, 84, initial_indent="  ", subsequent_indent="  ")


def columns(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Cells padded to the width of their column, to the right or to the left of it."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = zip(row, widths, right, strict=True)
        padded = [x.rjust(w) if r else x.ljust(w) for x, w, r in cells]
        lines.append("  ".join(padded).rstrip())
    return lines


def _plain_time(time: TimeSpent) -> Iterator[str]:
    rows: list[tuple[str, str, str]] = []
    for row in time_rows(time):
        lines = f":  {', '.join(row.lines)}" if row.lines else ""
        rows.append((row.seconds, row.share, f"{row.label}{lines}"))
    for text in columns(rows, (True, True, False)):
        yield f"  {text}"


_HEADER = ("time", "traces", "compiles", "function", "why")
_RIGHT = (True, True, True, False, False)


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
    yield from columns([_HEADER, *map(_cells, rows[:_MAX_ROWS])], _RIGHT)
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

    def card(title: Text, of: Finding | Hint, *texts: Text) -> None:
        console.print()
        console.print(title)
        if source := _source(of):
            console.print(Padding(Text(source, "italic"), (0, 4)))
        for text in texts:
            console.print(Padding(text, (0, 2)))

    for f in report.findings:
        at = (place(f.file, f.line), "bold")
        lost = "" if f.seconds is None else f"  {show_seconds(f.seconds)} lost"
        title = Text.assemble((f.kind, _STYLES[f.severity]), "  ", at, (lost, "dim"))
        card(title, f, Text(f.message), Text.assemble(("Fix: ", "green"), f.fix))
    if report.hints:
        console.print()
        console.print(Text("What would help", "bold"))
    for hint in report.hints:
        at = "" if hint.file is None else place(hint.file, hint.line)
        cost = f"  about {show_seconds(hint.seconds)}"
        title = Text.assemble((hint.kind, "cyan"), "  ", (at, "bold"), (cost, "dim"))
        card(title, hint, Text(f"{hint.message}. {hint.fix}"))
    if report.functions:
        table = Table(box=box.SIMPLE)
        for name, right in zip(_HEADER, _RIGHT, strict=True):
            table.add_column(name, justify="right" if right else "left")
        for row in report.functions[:_MAX_ROWS]:
            table.add_row(*map(Text, _cells(row)))
        console.print(table)
        if len(report.functions) > _MAX_ROWS:
            console.print(Text(f"and {len(report.functions) - _MAX_ROWS} more"))
    for note in report.notes:
        console.print(Text(f"Note: {note}", "dim"))
