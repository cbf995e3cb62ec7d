"""The report as a self-contained HTML page."""

import linecache
from collections.abc import Iterator

from eqx_fastjit._units import show_seconds

from ._page_compilations import compilations
from ._page_parts import Cell, e, html_document, prose, SCRIPT, section, table
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
from ._text import place, summary, time_rows


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
        *_findings(report),
        *_hints(report),
        *_functions(report.functions),
        *compilations(report),
        *_notes(report),
        "</main>",
        f"<script>{SCRIPT}</script>",
    ]
    title = f"{report.program}: {headline(report)}"
    return html_document(title, "\n".join(body))


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
    if report.exit_code == 0:
        return ""
    return f"; it ended with exit code {report.exit_code}"


# --- where the time went -------------------------------------------------------------


def _time(time: TimeSpent) -> Iterator[str]:
    if time.parts:
        yield from section("time", "Where the time went", _parts(time))


def _parts(time: TimeSpent) -> Iterator[str]:
    yield '<div class="parts" aria-hidden="true">'
    for part in time.parts:
        share = 100 * part.seconds / time.seconds
        yield f'<span class="part-{part.name}" style="width:{share:.2f}%"></span>'
    yield "</div>"
    number = "number"
    columns = (("seconds", number), ("share", number), ("part", ""), ("lines", ""))
    rows = [
        (
            Cell(row.seconds, number),
            Cell(row.share, number),
            Cell(row.label, f"swatch-{row.name}"),
            Cell("\n".join(row.lines), "name mono"),
        )
        for row in time_rows(time)
    ]
    yield from table("Parts of the run", columns, rows)


# --- findings ------------------------------------------------------------------------


def _findings(report: Report) -> Iterator[str]:
    if report.findings:
        yield from section("findings", "Findings", *map(_finding, report.findings))


def _finding(f: Finding) -> Iterator[str]:
    lost = "" if f.seconds is None else f"{show_seconds(f.seconds)} lost"
    yield (
        f'<article class="card {f.severity}"><h3><span>{e(f.kind)}</span>'
        f'<span class="severity">{e(f.severity)}</span>'
        f'<span class="where mono">{e(place(f.file, f.line))}</span>'
        f'<span class="lost">{e(lost)}</span></h3>'
    )
    yield f'<p class="dim">{e(KINDS[f.kind].capitalize())}.</p>'
    yield f"<p>{prose(f.message)}.</p>"
    yield _source(f)
    yield f"<p><strong>Fix:</strong> {prose(f.fix)}</p></article>"


def _source(f: Finding | Hint) -> str:
    lines = linecache.getlines(f.file) if f.file is not None else []
    if f.line is None or not 1 <= f.line <= len(lines):
        return ""
    first = max(1, f.line - _AROUND)
    chosen = lines[first - 1 : f.line + _AROUND]
    out = ""
    for number, text in enumerate(chosen, first):
        hit = ' class="hit"' if number == f.line else ""
        out += f"<span{hit}><i>{number}</i>{e(text.rstrip()) or ' '}</span>"
    label = e(f"Source of {shorten(f.file or '')}, line {f.line}")
    return (
        f'<pre tabindex="0" role="region" aria-label="{label}"><code>{out}</code></pre>'
    )


def _hints(report: Report) -> Iterator[str]:
    if report.hints:
        yield from section("hints", "What would help", map(_hint, report.hints))


def _hint(hint: Hint) -> str:
    at = "" if hint.file is None else place(hint.file, hint.line)
    return (
        f'<article class="card low"><h3><span>{e(hint.kind)}</span>'
        f'<span class="where mono">{e(at)}</span>'
        f'<span class="lost">about {show_seconds(hint.seconds)}</span></h3>'
        f'<p class="dim">{e(HINTS[hint.kind].capitalize())}.</p>'
        f"<p>{prose(hint.message)}.</p>{_source(hint)}<p>{prose(hint.fix)}</p>"
        "</article>"
    )


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
    if report.notes:
        notes = [f"<li>{prose(note)}</li>" for note in report.notes]
        yield from section("notes", "Not covered", ["<ul>", *notes, "</ul>"])
