"""The report as a self-contained HTML page."""

import linecache
from collections.abc import Iterator

from eqx_fastjit._units import show_seconds

from ._page_compilations import compilations
from ._page_parts import Cell, code, e, html_document, prose, SCRIPT, section, table
from ._report import (
    Finding,
    FunctionRow,
    headline,
    Hint,
    HINTS,
    is_good,
    KINDS,
    Report,
    TimeSpent,
)
from ._sites import shorten
from ._text import place, place_and_cost, summary, time_rows


# Lines of source around the one of a finding.
_AROUND = 3


def page(report: Report) -> str:
    """The page, with every text escaped."""
    body = [
        "<header>",
        f"<h1>{e(report.program)}</h1>",
        f"<p>{_headline(report)}</p>",
        f'<p class="dim">{e(summary(report))}{_ended(report)}</p>',
        "</header>",
        "<main>",
        *_time(report.time),
        *section("findings", "Findings", *map(_finding, report.findings)),
        *_hints(report),
        *_functions(report.functions),
        *compilations(report),
        *_notes(report),
        "</main>",
        f"<script>{SCRIPT}</script>",
    ]
    return html_document(f"{report.program}: {headline(report)}", "\n".join(body))


def _headline(report: Report) -> str:
    text = headline(report)
    text = f"{text[0].upper()}{text[1:]}"
    if is_good(report):
        return f'<span class="good">{e(text)}.</span>'
    lost = sum(f.seconds or 0 for f in report.findings)
    cost = f", about {show_seconds(lost)} lost" if lost else ""
    return f"<strong>{e(text)}</strong>{e(cost)}"


def _ended(report: Report) -> str:
    if report.exit_code is None:
        return "; it is still running"
    code = report.exit_code
    return f"; it ended with exit code {code}" if code else ""


def _time(time: TimeSpent) -> Iterator[str]:
    return section("time", "Where the time went", _parts(time) if time.parts else ())


def _parts(time: TimeSpent) -> Iterator[str]:
    yield '<div class="parts" aria-hidden="true">'
    for part in time.parts:
        share = 100 * part.seconds / time.seconds
        yield f'<span class="part-{part.name}" style="width:{share:.2f}%"></span>'
    yield "</div>"
    columns = (("seconds", "number"), ("share", "number"), ("part", ""), ("lines", ""))
    rows: list[tuple[Cell, ...]] = []
    for row in time_rows(time):
        numbers = Cell(row.seconds, "number"), Cell(row.share, "number")
        lines = Cell("\n".join(row.lines), "name mono")
        rows.append((*numbers, Cell(row.label, f"swatch-{row.name}"), lines))
    yield from table("Parts of the run", columns, rows)


# --- findings and hints --------------------------------------------------------------


def _finding(f: Finding) -> Iterator[str]:
    return _card(f, KINDS[f.kind], f.severity, "<strong>Fix:</strong> ")


def _hints(report: Report) -> Iterator[str]:
    cards = ("".join(_card(hint, HINTS[hint.kind])) for hint in report.hints)
    return section("hints", "What would help", cards)


def _card(
    of: Finding | Hint, what: str, severity: str = "", fix: str = ""
) -> Iterator[str]:
    where, cost = place_and_cost(of)
    shown = f'<span class="severity">{e(severity)}</span>' if severity else ""
    yield (
        f'<article class="card {severity or "low"}"><h3><span>{e(of.kind)}</span>'
        f'{shown}<span class="where mono">{e(where)}</span>'
        f'<span class="lost">{e(cost)}</span></h3>'
    )
    yield f'<p class="dim">{e(what.capitalize())}.</p>'
    yield f"<p>{prose(of.message)}.</p>"
    yield _source(of)
    yield f"<p>{fix}{prose(of.fix)}</p></article>"


def _source(of: Finding | Hint) -> str:
    lines = linecache.getlines(of.file) if of.file is not None else []
    if of.line is None or not 1 <= of.line <= len(lines):
        return ""
    first = max(1, of.line - _AROUND)
    out = ""
    for number, text in enumerate(lines[first - 1 : of.line + _AROUND], first):
        hit = ' class="hit"' if number == of.line else ""
        out += f"<span{hit}><i>{number}</i>{e(text.rstrip()) or ' '}</span>"
    return code(f"Source of {shorten(of.file or '')}, line {of.line}", out)


# --- tables --------------------------------------------------------------------------


def _functions(functions: tuple[FunctionRow, ...]) -> Iterator[str]:
    if not functions:
        return
    numbers = [(name, "number") for name in ("time", "traces", "compiles")]
    columns = (("function", ""), *numbers, ("why", ""), ("called from", ""))
    rows = [_function_row(f) for f in functions]
    all_of_them = table("Functions", columns, rows, name="all-functions")
    yield from section("ledger", "Functions, by cost", all_of_them)


def _function_row(f: FunctionRow) -> tuple[Cell, ...]:
    where = "" if f.file is None else f"\n{place(f.file, f.line)}"
    objects = f" ({f.objects} objects)" if f.objects > 1 else ""
    calls = [f"{site}\u00a0({n})" if n > 1 else site for site, n in f.calls[:3]]
    more = [f"and {len(f.calls) - 3} more"] if len(f.calls) > 3 else []
    return (
        Cell(f"{f.function}{objects}{where}", "name mono"),
        Cell(show_seconds(f.seconds), "number", f.seconds),
        Cell(str(f.traces), "number", f.traces),
        Cell(str(f.compiles), "number", f.compiles),
        Cell(", ".join(f"{n} {cause}" for cause, n in f.causes.items()), "why"),
        Cell("\n".join([*calls, *more]), "name mono"),
    )


def _notes(report: Report) -> Iterator[str]:
    notes = [f"<li>{prose(note)}</li>" for note in report.notes]
    return section("notes", "Not covered", ["<ul>", *notes, "</ul>"] if notes else ())
