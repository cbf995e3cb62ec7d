"""The report as text, by rich: in colour on a terminal, plain elsewhere.

What can be saved comes first, in one screen: a row for each finding. What is to be
known of each comes below, as far as there is room, and each general text once.
"""

import dataclasses
import io
import os
import tempfile
from collections.abc import Iterator, Sequence
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
from ._words import listed, plural, shortened, show_place, show_seconds


# Lines of a report, unless it is `verbose`.
_LINES = 60
# Rows that are explained in any case: those that save most.
_EXPLAINED = 4
# Rows of the table of findings, and the columns from which edits have one of their own,
# and from which lines are not broken.
_ROWS = 10
_WIDE, _NARROW = 110, 60


def write_text(
    report: Report, stream: TextIO, verbose: bool = False, keep: bool = False
) -> None:
    """Write the report for people.

    To see what does not fit a screen, a program need not be run again if `keep`: the
    whole report is in a temporary file then.
    """
    # A kernel's environment asks for colours, which a string must not have.
    plain = False if isinstance(stream, io.StringIO) else None
    console = Console(
        file=stream, highlight=False, force_jupyter=False, force_terminal=plain
    )
    shown = list(_top(report, verbose, console.width))
    end = [Text(note, "dim") for note in (*report.run.notes, footer(report))]
    room = _LINES - _height(console, [*shown, *end])
    explained: list[int] = []
    for i in _by_weight(report):
        block = [] if verbose else list(_details(i, report.rows[i], {}, verbose))
        height = _height(console, block)
        # Some are always there, whatever their length.
        if verbose or len(explained) < _EXPLAINED or height + 2 <= room:
            room -= height
            explained.append(i)
    said: dict[str, int] = {}
    for i in sorted(explained):
        shown += _details(i, report.rows[i], said, verbose)
    n_hidden = len(report.rows) - len(explained)
    if n_hidden:
        rest = f"{plural(n_hidden, 'more explanation')}: --verbose"
        rest += _written(report) if keep else ""
        shown += ["", Text(rest, "dim")]
    if verbose and report.functions:
        shown.append(_functions(report))
    for part in (*shown, "", *end):
        console.print(part)


def _by_weight(report: Report) -> list[int]:
    """Rows: first what makes results wrong, then what saves most in this run."""

    def key(i: int) -> Any:
        row = report.rows[i]
        return i >= len(report.run.stale), row.is_later, -row.saves

    return sorted(range(len(report.rows)), key=key)


def _written(report: Report) -> str:
    """Where the whole report has been written to, or nothing."""
    whole = io.StringIO()
    write_text(report, whole, verbose=True)
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix="eqx-fastjit-", suffix=".txt", delete=False
        ) as file:
            file.write(whole.getvalue())
    except OSError:
        return ""
    return f", or {file.name}"


def _indented(part: Any, by: int = 2) -> Padding:
    return Padding(part, (0, 0, 0, by), expand=False)


def _height(console: Console, parts: Sequence[Any]) -> int:
    with console.capture() as captured:
        console.print(*parts, sep="\n")
    return captured.get().count("\n")


def _top(report: Report, verbose: bool, columns: int) -> Iterator[Any]:
    style = "bold" if report.findings else "bold green"
    yield ""
    yield Text(f"eqx-fastjit doctor: {report.run.program}", style)
    yield Text(headline(report), style)
    yield _indented(_time(report, verbose, columns))
    if report.run.device is not None:
        yield _indented(Text(str(report.run.device)))
    if report.rows:
        yield ""
        yield _rows(report, verbose, columns)


def _time(report: Report, verbose: bool, columns: int) -> Table:
    seconds = [show_seconds(part.seconds) for part in report.time]
    width = max(8, *map(len, seconds))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", min_width=width)
    grid.add_column(justify="right", min_width=4)
    # What is left of a line, so that no figure is cut.
    room = max(columns - width - 10, 20)
    grid.add_column(no_wrap=not verbose, max_width=room)
    for part, cost in zip(report.time, seconds, strict=True):
        share = f"{part.seconds / report.run.seconds:.0%}" if report.run.seconds else ""
        lines: list[str] = []
        for text, x in part.lines if verbose else part.lines[:1]:
            end = f" {show_seconds(x)}"
            fits = max(room - len(part.label) - 2 - len(end), 10)
            lines.append((text if verbose else shortened(text, fits)) + end)
        label = Text.assemble(part.label, (f"  {', '.join(lines)}", "dim"))
        grid.add_row(cost, share, label)
    return grid


# --- rows -----------------------------------------------------------------------------


def _rows(report: Report, verbose: bool, columns: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), caption_justify="left")
    for name in ("", "saves", ""):
        table.add_column(name, justify="right", no_wrap=True)
    is_wide = columns >= _WIDE
    table.add_column("what" if is_wide else "what, and the edit", overflow="fold")
    # No name is broken, but in a terminal that has no room for it.
    table.add_column("line", overflow="fold", no_wrap=columns >= _NARROW)
    if is_wide:
        table.add_column("edit", overflow="fold")
    shown = report.rows if verbose else report.rows[:_ROWS]
    for i, finding in enumerate(shown, 1):
        for *cells, edit in _cells(f"{i}", finding):
            if is_wide:
                cells.append(edit)
            elif edit.plain not in ("", "-"):  # below what it is for
                cells[3] = Text("\n  ").join([cells[3], edit])
            table.add_row(*cells)
    rest = len(report.rows) - len(shown)
    table.caption = f"and {rest} more: --verbose" if rest else None
    return table


def _cells(number: str, finding: Finding) -> Iterator[list[Any]]:
    """The row of a finding, and one for each of its parts."""
    saves = show_seconds(finding.saves)
    if not finding.saves:  # the price of something, or it makes results wrong
        saves = f"({show_seconds(finding.seconds)})" if finding.seconds else "-"
    count = f"{finding.count}x" if finding.count else ""
    place = os.path.basename(show_place(finding.line)) if finding.line else ""
    what, edit = finding.what, _edit(finding.edit)
    if finding.parts:
        functions = listed(finding.functions, 2)
        what, edit = f"{functions}: {len(finding.parts)} causes", Text("")
    yield [number, saves, count, Text(_plain(what), "bold"), place, edit]
    for part in finding.parts:
        what = Text(f"  {_plain(part.what)}")
        price = f"({show_seconds(part.seconds)})" if part.seconds else ""
        saves = show_seconds(part.saves) if part.saves else price
        yield ["", saves, f"{part.count}x", what, "", _edit(part.edit)]


def _edit(text: str) -> Text:
    return Text(_plain(text) or "-", "green" if text else "dim")


def _plain(text: str) -> str:
    return text.replace("`", "")


# --- details --------------------------------------------------------------------------


def _details(
    row: int, finding: Finding, said: dict[str, int], verbose: bool
) -> Iterator[Any]:
    """What happened and what to do. `said`: general texts, and where they stand."""
    number = row + 1
    yield ""
    where = f"  {show_place(finding.line)}" if finding.line else ""
    title = f"{number}. {finding.title()}"
    yield Text.assemble((title, "bold yellow"), (where, "bold"))
    if source := source_line(finding.line):
        yield _indented(Text(source, "italic"), 4)
    yield _indented(Text(finding.says))
    if finding.calls and (verbose or len(finding.calls) > 1):
        calls = show_calls(finding, verbose)
        yield _indented(Text(f"Called: {calls}.", "dim"))
    if not finding.parts:
        yield from _fix(number, finding, said, 2)
    first: dict[Any, int] = {}
    for i, part in enumerate(finding.parts, 1):
        yield _indented(Text(f"({i}) {part.says}"))
        # The last sentence is what is known of the case.
        like = first.setdefault((part.kind(), part.fix.rpartition(". ")[2]), i)
        is_same = part.edit or part.fix == finding.parts[like - 1].fix
        if like < i and is_same and not verbose:
            edit = f"{part.edit}, " * bool(part.edit)
            part = dataclasses.replace(part, fix=f"{edit}as in ({like}).")
        yield from _fix(number, part, said, 6)


def _fix(
    number: int, finding: Finding, said: dict[str, int], indent: int
) -> Iterator[Any]:
    text = [finding.fix]
    if finding.fix in said:
        text = [f"as in {said[finding.fix]}."]
    elif finding.note and finding.note not in said:
        text.append(finding.note)
    said.setdefault(finding.fix, number)
    said.setdefault(finding.note, number)
    if finding.gain:
        text.append(f"Saves {finding.gain}.")
    yield _indented(Text.assemble(("Fix: ", "green"), " ".join(text)), indent)


# --- verbose --------------------------------------------------------------------------


def _functions(report: Report) -> Table:
    table = Table(box=box.SIMPLE)
    for name in ("time", "traces", "compiles"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("function", overflow="fold")
    table.add_column("why", overflow="fold")
    for row in report.functions:
        numbers = show_seconds(row.seconds), str(row.traces), str(row.compiles)
        name = f"{row.function} ({row.place})" if row.place else row.function
        table.add_row(*numbers, Text(name), Text(row.why()))
    return table
