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


def place_and_cost(of: Finding | Hint) -> tuple[str, str]:
    """Both in words; empty where there is none."""
    if isinstance(of, Hint):
        where = "" if of.file is None else place(of.file, of.line)
        return where, f"about {show_seconds(of.seconds)}"
    lost = "" if of.seconds is None else f"{show_seconds(of.seconds)} lost"
    return place(of.file, of.line), lost


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
            return _write_rich(report, Console(file=stream))
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


def _source(of: Finding | Hint) -> str:
    return "" if of.file is None else linecache.getline(of.file, of.line or 0).strip()


def _plain_lines(report: Report) -> Iterator[str]:
    yield from ("", _title(report), summary(report))
    rows: list[tuple[str, str, str]] = []
    for row in time_rows(report.time):
        lines = f":  {', '.join(row.lines)}" if row.lines else ""
        rows.append((row.seconds, row.share, f"{row.label}{lines}"))
    for text in columns(rows, (True, True, False)):
        yield f"  {text}"
    for f in report.findings:
        title = f"{f.kind} ({f.severity})"
        yield from _plain_card(f, title, f.message, f"Fix: {f.fix}")
    if report.hints:
        yield from ("", "What would help:")
    for hint in report.hints:
        yield from _plain_card(hint, hint.kind, f"{hint.message}. {hint.fix}")
    if report.functions:
        yield ""
        shown = map(_cells, report.functions[:_MAX_ROWS])
        yield from (*columns([_HEADER, *shown], _RIGHT), *_more(report))
    for note in report.notes:
        yield from textwrap.wrap(f"Note: {note}", 88)


def _plain_card(of: Finding | Hint, title: str, *texts: str) -> Iterator[str]:
    yield from ("", "  ".join(filter(None, (title, *place_and_cost(of)))))
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


_HEADER = ("time", "traces", "compiles", "function", "why")
_RIGHT = (True, True, True, False, False)


def _cells(row: FunctionRow) -> tuple[str, ...]:
    where = "" if row.file is None else f" ({place(row.file, row.line)})"
    causes = ", ".join(f"{n} {cause}" for cause, n in row.causes.items())
    if row.jit == "jax" and row.file is not None:
        causes = "outside of jit"
    numbers = show_seconds(row.seconds), str(row.traces), str(row.compiles)
    return *numbers, f"{row.function}{where}", causes


def _more(report: Report) -> list[str]:
    rest = len(report.functions) - _MAX_ROWS
    return [f"and {rest} more"] if rest > 0 else []


def _write_rich(report: Report, console: Any) -> None:
    from rich import box
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    def card(of: Finding | Hint, style: str, *texts: Text) -> list[Any]:
        where, cost = place_and_cost(of)
        cost = f"  {cost}" if cost else ""
        title = Text.assemble((of.kind, style), "  ", (where, "bold"), (cost, "dim"))
        source = _source(of)
        shown = [Padding(Text(source, "italic"), (0, 4))] if source else []
        return ["", title, *shown, *[Padding(text, (0, 2)) for text in texts]]

    title = Text(_title(report), "bold green" if is_good(report) else "bold")
    out: list[Any] = ["", title, Text(summary(report), "dim")]
    if report.time.parts:
        grid = Table.grid(padding=(0, 2))
        for justify in ("right", "right", "left", "left"):
            grid.add_column(justify=justify)
        for row in time_rows(report.time):
            lines = Text(", ".join(row.lines), "dim")
            grid.add_row(row.seconds, row.share, Text(row.label), lines)
        out.append(Padding(grid, (0, 2)))
    for f in report.findings:
        fix = Text.assemble(("Fix: ", "green"), f.fix)
        out += card(f, _STYLES[f.severity], Text(f.message), fix)
    if report.hints:
        out += ["", Text("What would help", "bold")]
    for hint in report.hints:
        out += card(hint, "cyan", Text(f"{hint.message}. {hint.fix}"))
    if report.functions:
        table = Table(box=box.SIMPLE)
        for name, right in zip(_HEADER, _RIGHT, strict=True):
            table.add_column(name, justify="right" if right else "left")
        for row in report.functions[:_MAX_ROWS]:
            table.add_row(*map(Text, _cells(row)))
        out += [table, *map(Text, _more(report))]
    for part in (*out, *[Text(f"Note: {note}", "dim") for note in report.notes]):
        console.print(part)
