"""The report as text, by rich: in colour on a terminal, plain elsewhere.

A row has a line with what it saves, and a line for each edit. Most fit a screen. What
costs less than `report.limit` has none.
"""

import io
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console
from rich.text import Text

from ._compare import reasons_of
from ._lines import row_lines
from ._report import headline, Report
from ._why import is_operation, title_of
from ._words import plural, show_seconds, wrapped


# Rows of a report, unless it is `verbose`.
_ROWS = 10
# The share of the run below which a part of it has no line.
_LEAST_SHARE = 0.005
_MOST_COLUMNS, _LEAST_COLUMNS = 110, 50


def write_text(report: Report, stream: TextIO, verbose: bool = False) -> None:
    """Write the report for people."""
    # A kernel's environment asks for colours, which a string must not have.
    plain = False if isinstance(stream, io.StringIO) else None
    console = Console(
        file=stream, highlight=False, force_jupyter=False, force_terminal=plain
    )
    columns = max(_LEAST_COLUMNS, min(console.width, _MOST_COLUMNS))
    for line in _lines(report, verbose, columns):
        console.print(line, soft_wrap=True)


def _lines(report: Report, verbose: bool, columns: int) -> Iterator[Text]:
    style = "bold" if report.findings else "bold green"
    yield Text()
    title = f"eqx-fastjit doctor: {report.run.program} {headline(report)}"
    yield from _wrapped(title, columns, style)
    shown = (
        report.rows
        if verbose
        else tuple(x for x in report.rows if x.saves or x.is_wrong)
    )
    for i, row in enumerate(shown[: None if verbose else _ROWS], 1):
        title, *edits = row_lines(row, columns, verbose, i)
        yield Text(title, "bold")
        yield from map(Text, edits)
    if not verbose and (rest := shown[_ROWS:]):
        saved = show_seconds(sum(x.saves for x in rest))
        yield Text(f"{plural(len(rest), 'more row')} ({saved}): --verbose", "dim")
    yield Text()
    yield from _wrapped(_time(report), columns)
    if report.run.device is not None:
        yield from _wrapped(str(report.run.device), columns)
    prices = [x for x in report.rows if not x.saves and not x.is_wrong]
    if prices and not verbose:
        seconds = show_seconds(sum(x.wanted for x in prices))
        names = ", ".join(x.function for x in prices[:3])
        text = f"Other programs took {seconds}, of {names} (--verbose)."
        yield from _wrapped(text, columns)
    yield from _wrapped(_legend(report), columns, "dim")
    for note in report.notes:
        yield from _wrapped(note, columns, "dim")
    if verbose:
        yield from _compilations(report, columns)


def _legend(report: Report) -> str:
    """What stands in rows, in words."""
    parts = [p for row in report.findings for p in row.parts]
    text = ""
    if parts:
        text += f"`eqx-fastjit rule {parts[0].rule}` explains that rule."
    if any(p.gain is None for p in parts):
        text += ' "and": only with the edit above it.'
    if any(p.other_data for p in parts):
        text += (
            ' "other data": more or fewer elements are computed; mask what is added.'
        )
    return text


def _wrapped(
    text: str, columns: int, style: str = "", indent: str = ""
) -> Iterator[Text]:
    yield from (Text(x, style) for x in wrapped(text, indent, columns))


# --- the rest -------------------------------------------------------------------------


def _time(report: Report) -> str:
    """Where the time went, but for what is not worth a word."""
    parts = [
        f"{x.label} {show_seconds(x.seconds)} ({x.seconds / report.run.seconds:.0%})"
        for x in report.time
        if x.seconds > _LEAST_SHARE * report.run.seconds
    ]
    rest = ": see `eqx-fastjit profile`" if report.time[-1].seconds else ""
    return f"{', '.join(parts)}{rest}." if parts else ""


def _compilations(report: Report, columns: int) -> Iterator[Text]:
    """Each compilation with the leaves that differ."""
    yield Text()
    yield Text("Compilations", "bold")
    for event, reason in reasons_of(report.run.events, report.run.before):
        if is_operation(event) or not event.compile:
            continue
        yield Text(f"{show_seconds(event.seconds):>9} {title_of(event.function)}")
        for text in reason.texts:
            yield from _wrapped(text, columns, "dim", " " * 10)
