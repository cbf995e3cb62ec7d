"""Rows and compilations as lines, and the report as text.

The lines are the same in `explain`, in a notebook and on a page.
"""

import shutil
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TextIO

from eqx_fastjit._facts import Place
from eqx_fastjit.insight._words import (
    listed,
    plural,
    show_bytes,
    show_chain,
    show_place,
    show_seconds,
    wrapped,
)
from eqx_fastjit.insight.record._events import Event
from eqx_fastjit.insight.record._time import Time
from eqx_fastjit.insight.record._why import is_operation, title_of
from eqx_fastjit.insight.rules._rules import Part, Row

from ._reasons import reasons_of
from ._report import headline, Report


# The columns of the number and the seconds; edits that are shown, unless all are.
_INDENT = 13
_EDITS = 10


class Line(NamedTuple):
    """A title, or what is below it. What has a rule is followed by its `edit`."""

    seconds: str
    text: str
    rule: str = ""
    edit: str = ""
    place: Place | None = None


def lines_of(row: Row) -> list[Line]:
    """First what a row saves and where, then each edit."""
    saves = ""
    if row.saves:
        saves = f"{'~' if row.about else ''}{show_seconds(row.saves)}"
    if row.bytes:
        saves = show_bytes(row.bytes)
    title = f"{row.function}: {row.cost}" if row.cost else row.function
    if row.compilations > 1:
        title += "; " if row.cost else ": "
        title += plural(row.compilations, "compilation")
        title += f" of {plural(row.programs, 'program')}" if row.programs else ""
    lines = [Line("wrong" if row.is_wrong else saves, title, place=row.line)]

    # What an edit saves beside those above is told if there are several; 0 is that of
    # what has to be compiled. The first of these has the seconds of all.
    is_single = sum(x.gain != 0.0 for x in row.parts) < 2
    wanted = f"({show_seconds(row.wanted)})"
    for part in row.parts:
        seconds = "and" if part.gain is None else show_seconds(part.gain)
        if not part.edit:
            seconds, wanted = wanted, ""
        elif is_single:
            seconds = ""
        place = ""
        if part.line not in (None, row.line):
            place = f" ({show_place(part.line)})"
        lines.append(Line(seconds, part.what, part.rule, _edit(part) + place))
    # What is saved in later runs is of no function, and of no line.
    return [lines[1]._replace(seconds=saves)] if row.later else lines


def _edit(part: Part) -> str:
    edit = f": {part.edit}" if part.edit else ""
    return f"{edit} (other data)" if part.other_data else edit


def part_text(part: Part) -> str:
    """What, by which rule, and the edit: `n 1, 2 [number]: jnp.asarray(n)`."""
    return f"{part.what} [{part.rule}]{_edit(part)}"


def compilations(
    events: Iterable[Event], before: Iterable[Event] = ()
) -> Iterator[list[Line]]:
    """Each compilation: why, and the leaves that differ."""
    for event, reason in reasons_of(events, before):
        cached = ", read from the cache" if event.cached else ""
        title = f"{title_of(event.function)}: {reason.cause}{cached}"
        below = [f"called at {show_chain(event.frames)}", *reason.texts]
        lines = (Line("", text) for text in below)
        yield [Line(show_seconds(event.seconds), title), *lines]


def as_text(
    lines: list[Line], columns: int, verbose: bool = False, number: str = ""
) -> Iterator[str]:
    """Lines as text of so many columns; of many edits the first, unless `verbose`."""
    shown = lines if verbose else lines[: 1 + _EDITS]
    for line in shown:
        text = f"{line.text} [{line.rule}]{line.edit}" if line.rule else line.text
        out = wrapped(text, " " * _INDENT, columns)
        begin = f"{number}{line.seconds:>{_INDENT - 1 - len(number)}} "
        out[0], number = begin + out[0][_INDENT:], ""
        if line.place is not None:
            place = f"  {show_place(line.place)}"
            if len(out[-1]) + len(place) > columns:
                out.append("")
            out[-1] += place.rjust(columns - len(out[-1]))
        yield from out
    if more := len(lines) - len(shown):
        yield f"{'':{_INDENT}}and {plural(more, 'more edit')} (verbose)"


# --- the report -----------------------------------------------------------------------

# Rows of a report, unless it is `verbose`.
_ROWS = 10
_MOST_COLUMNS, _LEAST_COLUMNS = 110, 50


def plain_text(report: Report, verbose: bool = False) -> str:
    """The report as lines that fit the terminal, without colour."""
    shown = blocks(report, verbose, shutil.get_terminal_size().columns)
    return "\n".join(line for _, lines in shown for line in lines)


def write_text(report: Report, stream: TextIO, verbose: bool = False) -> None:
    """Write the report for people: in colour on a terminal, plain elsewhere."""
    # To import rich takes longer than to make the report. (A program may have put
    # anything in place of stderr.)
    if not getattr(stream, "isatty", bool)():
        print(plain_text(report, verbose), file=stream)
        return

    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    for style, lines in blocks(report, verbose, console.width):
        for line in lines:
            console.print(Text(line, style), soft_wrap=True)


def blocks(
    report: Report, verbose: bool, columns: int
) -> Iterator[tuple[str, Iterable[str]]]:
    """The report for so many columns: styles, each with the lines that have it."""
    columns = max(_LEAST_COLUMNS, min(columns, _MOST_COLUMNS))
    run, prices = report.run, [x for x in report.rows if x.wanted and not x.saves]

    yield "", [""]
    title = f"eqx-fastjit doctor: {run.program} {headline(report)}"
    style = "bold" if report.findings else "bold green"
    yield style, wrapped(title, columns=columns)

    rows = [x for x in report.rows if verbose or x not in prices]
    shown = rows if verbose else rows[:_ROWS]
    for i, row in enumerate(shown, 1):
        first, *below = as_text(lines_of(row), columns, verbose, f"{i}")
        yield "bold", [first]
        yield "", below
    if rest := rows[len(shown) :]:
        saved = show_seconds(sum(x.saves for x in rest))
        yield "dim", [f"{plural(len(rest), 'more row')} ({saved}): --verbose"]

    yield "", [""]
    yield "", wrapped(time_text(report.time, run.seconds), columns=columns)
    if prices and not verbose:
        seconds = show_seconds(sum(x.wanted for x in prices))
        names = listed((x.function for x in prices), 3)
        text = (
            f"No row spares the other {seconds} of compilations: {names} (--verbose)."
        )
        yield "", wrapped(text, columns=columns)
    for note in (_legend(shown), *run.notes):
        yield "dim", wrapped(note, columns=columns)

    functions = [e for e in run.events if e.compile and not is_operation(e)]
    if verbose and functions:
        yield "bold", ["", "Compilations"]
        for lines in compilations(functions, run.before):
            yield "", as_text(lines, columns, verbose)


def time_text(times: Iterable[Time], seconds: float) -> str:
    """Where the time of a run went, but for what is less than half a percent."""
    parts = [
        f"{x.label} {show_seconds(x.seconds)} ({_share(x, seconds)})"
        for x in times
        if x.seconds > 0.005 * seconds
    ]
    return f"{', '.join(parts)}." if parts else ""


def _share(time: Time, seconds: float) -> str:
    """A part of the run, and the line that has most of it, if that is known."""
    line = f", most at {show_place(time.line)}" if time.line else ""
    return f"{time.seconds / seconds:.0%}{line}"


def _legend(rows: Iterable[Row]) -> str:
    """What stands in rows, in words."""
    parts = [part for row in rows for part in row.parts if part.edit]
    names = "Names are those of the function's parameters."
    said = [
        f"`eqx-fastjit rule {x.rule}` explains that rule. {names}" for x in parts[:1]
    ]
    if any(x.gain is None for x in parts):
        said.append('"and": it and the edit above save only together.')
    if any(x.other_data for x in parts):
        more = "mask what is added; random numbers of another shape are others."
        said.append(f'"other data": other elements or dtypes are computed; {more}')
    return " ".join(said)
