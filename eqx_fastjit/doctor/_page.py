"""The report as one page of HTML that needs nothing from elsewhere."""

import html
import linecache
from collections.abc import Iterator

from eqx_fastjit._units import show_seconds

from ._report import Bar, Finding, FunctionRow, headline, KINDS, Report
from ._sites import shorten
from ._text import place, summary


# Lines of source around the one of a finding.
_AROUND = 3
# Rows of the timeline, and bars on it: more are no longer seen.
_MAX_LANES = 12
_MAX_BARS = 600
_PARTS = (
    ("trace", "tracing (Python)"),
    ("lower", "lowering"),
    ("compile", "XLA compile"),
    ("first_run", "first run"),
)
# Height of a row of the timeline, in pixels: its label, then its bars.
_LANE, _LABEL, _BAR = 46, 17, 16

_STYLE = """
:root { color-scheme: light dark; --bg: #fbfbf9; --card: #fff; --text: #1d2125;
  --dim: #5a636d; --line: #dcdfe3; --code: #f3f4f1; --hit: #fff1c2; --link: #0b57b8;
  --high: #b3261e; --medium: #8a5a00; --low: #24608f; --good: #1c6b3c;
  --trace: #3f6fc4; --lower: #7f5bb5; --compile: #d07a1e; --first_run: #4c9a6a; }
@media (prefers-color-scheme: dark) { :root { --bg: #15181c; --card: #1d2126;
  --text: #e4e7ea; --dim: #a3adb8; --line: #353c44; --code: #14171a; --hit: #4a3d0f;
  --link: #8ab8f5; --high: #ff8a80; --medium: #f0b84c; --low: #8fc3ee;
  --good: #7fd0a0; --trace: #6d98e6; --lower: #a988dc; --compile: #e69a4a;
  --first_run: #6fbe8d; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem 1rem 4rem;
  background: var(--bg); color: var(--text);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem;
  overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; }
h3 { font-size: 1rem; margin: 0; display: flex; flex-wrap: wrap; gap: .25rem .75rem;
  align-items: baseline; }
p { margin: .5rem 0; overflow-wrap: anywhere; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.dim { color: var(--dim); }
.good { color: var(--good); font-weight: 600; }
.mono, code, pre, td.mono { font-family: ui-monospace, "DejaVu Sans Mono", Menlo,
  Consolas, monospace; font-size: .875rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  border-left: .3rem solid var(--edge); padding: .9rem 1rem; margin: 0 0 1rem; }
.high { --edge: var(--high); } .medium { --edge: var(--medium); }
.low { --edge: var(--low); }
.severity { color: var(--edge); font-weight: 600; font-size: .875rem; }
.lost { margin-left: auto; font-variant-numeric: tabular-nums; font-weight: 600; }
.where { overflow-wrap: anywhere; font-weight: 400; }
pre { background: var(--code); border-radius: .35rem; margin: .6rem 0; padding: .5rem 0;
  overflow-x: auto; line-height: 1.45; }
pre span { display: block; padding: 0 .75rem; min-width: max-content; }
pre .hit { background: var(--hit); }
pre i { color: var(--dim); font-style: normal; display: inline-block; min-width: 3.5ch;
  margin-right: 1.5ch; text-align: right; user-select: none; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem;
  background: var(--card); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { padding: .4rem .75rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }
tbody tr:last-child td { border-bottom: 0; }
th { color: var(--dim); font-weight: 600; white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
td.name { min-width: 14rem; overflow-wrap: anywhere; white-space: pre-line; }
td.why { min-width: 9rem; }
.timeline { background: var(--card); border: 1px solid var(--line);
  border-radius: .5rem; padding: .75rem; }
.timeline svg { display: block; overflow: visible; }
.timeline text { fill: var(--text); font-size: 12px; }
.timeline .tick { fill: var(--dim); font-size: 11px; }
.timeline line { stroke: var(--line); }
.trace { fill: var(--trace); stroke: var(--trace); }
.lower { fill: var(--lower); stroke: var(--lower); }
.compile { fill: var(--compile); stroke: var(--compile); }
.first_run { fill: var(--first_run); stroke: var(--first_run); }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: 0 0 .75rem;
  padding: 0; list-style: none; font-size: .875rem; }
.legend svg { display: inline-block; vertical-align: -1px; margin-right: .4rem; }
summary { cursor: pointer; padding: .25rem 0; }
details .scroll { margin-top: .5rem; max-height: 24rem; overflow-y: auto; }
@media (max-width: 40rem) { .lost { margin-left: 0; } body { padding-top: 1rem; } }
@media print { .card, .timeline { break-inside: avoid; } }
"""


def page(report: Report) -> str:
    """The page, with every text escaped."""
    body = [
        "<header>",
        f"<h1>{_e(report.program)}</h1>",
        f"<p>{_headline(report)}</p>",
        f'<p class="dim">{_e(summary(report))}{_ended(report)}</p>',
        "</header>",
        "<main>",
        *_findings(report),
        *_timeline(report),
        *_functions(report.functions),
        *_notes(report),
        "</main>",
    ]
    title = f"{report.program}: {headline(report)}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_e(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _e(text: object) -> str:
    return html.escape(str(text))


def _prose(text: str) -> str:
    """Text with code in backticks."""
    parts = text.split("`")
    return "".join(
        f"<code>{_e(part)}</code>" if i % 2 else _e(part)
        for i, part in enumerate(parts)
    )


def _headline(report: Report) -> str:
    n = len(report.findings)
    if n == 0:
        return '<span class="good">Nothing found.</span>'
    lost = sum(f.seconds or 0 for f in report.findings)
    cost = f", about {show_seconds(lost)} lost" if lost else ""
    return f"<strong>{_e(headline(report))}</strong>{_e(cost)}"


def _ended(report: Report) -> str:
    if report.exit_code is None:
        return "; it is still running"
    if report.exit_code == 0:
        return ""
    return f"; it ended with exit code {report.exit_code}"


# --- findings ------------------------------------------------------------------------


def _findings(report: Report) -> Iterator[str]:
    if not report.findings:
        return
    yield '<section aria-labelledby="findings"><h2 id="findings">Findings</h2>'
    for finding in report.findings:
        yield from _finding(finding)
    yield "</section>"


def _finding(f: Finding) -> Iterator[str]:
    lost = "" if f.seconds is None else f"{show_seconds(f.seconds)} lost"
    yield (
        f'<article class="card {f.severity}"><h3><span>{_e(f.kind)}</span>'
        f'<span class="severity">{_e(f.severity)}</span>'
        f'<span class="where mono">{_e(place(f.file, f.line))}</span>'
        f'<span class="lost">{_e(lost)}</span></h3>'
    )
    yield f'<p class="dim">{_e(KINDS[f.kind].capitalize())}.</p>'
    yield f"<p>{_prose(f.message)}.</p>"
    yield _source(f)
    yield f"<p><strong>Fix:</strong> {_prose(f.fix)}</p></article>"


def _source(f: Finding) -> str:
    lines = linecache.getlines(f.file) if f.file is not None else []
    if f.line is None or not 1 <= f.line <= len(lines):
        return ""
    first = max(1, f.line - _AROUND)
    chosen = lines[first - 1 : f.line + _AROUND]
    out = []
    for number, text in enumerate(chosen, first):
        hit = ' class="hit"' if number == f.line else ""
        out.append(f"<span{hit}><i>{number}</i>{_e(text.rstrip()) or ' '}</span>")
    label = _e(f"Source of {shorten(f.file or '')}, line {f.line}")
    return (
        f'<pre tabindex="0" role="region" aria-label="{label}"><code>'
        + "".join(out)
        + "</code></pre>"
    )


# --- timeline ------------------------------------------------------------------------


def _timeline(report: Report) -> Iterator[str]:
    bars = tuple(bar for bar in report.bars if not bar.inside)
    if not bars:
        return
    yield '<section aria-labelledby="timeline"><h2 id="timeline">When it compiled</h2>'
    yield '<div class="timeline"><ul class="legend">'
    for name, label in _PARTS:
        swatch = f'<rect class="{name}" width="11" height="11"/>'
        yield (
            '<li><svg width="11" height="11" aria-hidden="true">'
            f"{swatch}</svg>{_e(label)}</li>"
        )
    yield "</ul>"
    yield from _svg(bars, report.seconds)
    yield "</div>"
    yield from _bar_table(bars)
    yield "</section>"


def _lanes(bars: tuple[Bar, ...]) -> list[tuple[str, list[Bar]]]:
    """A row for each function, the dearest first; the last one has the others."""
    lanes: dict[str, list[Bar]] = {}
    for bar in sorted(bars, key=lambda bar: -bar.seconds)[:_MAX_BARS]:
        name = "operations outside of jit" if bar.jit == "jax" else bar.function
        lanes.setdefault(name, []).append(bar)
    order = sorted(lanes.items(), key=lambda lane: -sum(b.seconds for b in lane[1]))
    if len(order) > _MAX_LANES:
        rest = order[_MAX_LANES - 1 :]
        others = [bar for _, lane in rest for bar in lane]
        order = [*order[: _MAX_LANES - 1], (f"{len(rest)} others", others)]
    return order


def _svg(shown: tuple[Bar, ...], seconds: float) -> Iterator[str]:
    lanes = _lanes(shown)
    total = max([seconds, *[b.start + b.seconds for b in shown], 1e-3])
    height = len(lanes) * _LANE + 24
    label = f"Timeline of {len(shown)} compilations; the table below has them all"
    yield f'<svg width="100%" height="{height}" role="img" aria-label="{_e(label)}">'
    step = _step(total)
    for i in range(int(total / step) + 1):
        x = 100 * i * step / total
        anchor = "start" if i == 0 else "end" if x > 94 else "middle"
        yield (
            f'<line x1="{x:.3f}%" x2="{x:.3f}%" y1="0" y2="{height - 18}"/>'
            f'<text class="tick" x="{x:.3f}%" y="{height - 4}" '
            f'text-anchor="{anchor}">{i * step:g} s</text>'
        )
    for i, (name, bars) in enumerate(lanes):
        top = i * _LANE
        cost = show_seconds(sum(b.seconds for b in bars))
        text = f"{name} — {len(bars)} x, {cost}"
        yield f'<text x="2" y="{top + 13}">{_e(_cut(text))}</text>'
        for bar in sorted(bars, key=lambda bar: bar.start):
            yield from _rects(bar, top + _LABEL + 2, total)
    yield "</svg>"


def _cut(text: str) -> str:
    return text if len(text) <= 48 else f"{text[:22]}…{text[-25:]}"


def _rects(bar: Bar, y: int, total: float) -> Iterator[str]:
    yield f"<g><title>{_e(_bar_text(bar))}</title>"
    x = bar.start
    for name, _ in _PARTS:
        seconds = getattr(bar, name)
        if seconds > 0:
            yield (
                f'<rect class="{name}" x="{100 * x / total:.3f}%" y="{y}" '
                f'width="{100 * seconds / total:.3f}%" height="{_BAR}"/>'
            )
            x += seconds
    yield "</g>"


def _bar_text(bar: Bar) -> str:
    parts = [
        f"{label} {show_seconds(getattr(bar, name))}"
        for name, label in _PARTS
        if getattr(bar, name) > 0
    ]
    cause = f" ({bar.cause})" if bar.cause else ""
    return f"{bar.function}{cause} at {bar.site or '?'}: {', '.join(parts)}"


def _step(total: float) -> float:
    """Between two marks of the axis: 1, 2 or 5 times a power of ten."""
    step = 1e-3
    while True:
        for factor in (1, 2, 5):
            if total / (step * factor) <= 6:
                return step * factor
        step *= 10


def _bar_table(bars: tuple[Bar, ...]) -> Iterator[str]:
    shown = sorted(bars, key=lambda bar: -bar.seconds)[:_MAX_BARS]
    shown.sort(key=lambda bar: bar.start)
    rows = [
        (
            (f"{bar.start:.2f} s", "number"),
            (show_seconds(bar.seconds), "number"),
            (bar.function, "name mono"),
            (bar.cause, "why"),
            (str(bar.site or ""), "name mono"),
        )
        for bar in shown
    ]
    n = len(bars)
    what = f"All {n}" if n <= _MAX_BARS else f"The {_MAX_BARS} longest of {n}"
    yield f"<details><summary>{what} compilations, in order</summary>"
    header = (("at", "number"), ("took", "number"), ("what", ""), ("why", ""))
    yield from _table("Compilations", (*header, ("called from", "")), rows)
    yield "</details>"


# --- tables --------------------------------------------------------------------------

_Cell = tuple[str, str]


def _table(
    label: str, header: tuple[_Cell, ...], rows: list[tuple[_Cell, ...]]
) -> Iterator[str]:
    """A table that can be scrolled by keyboard; cells are text and class."""
    yield f'<div class="scroll" tabindex="0" role="region" aria-label="{_e(label)}">'
    yield "<table><thead><tr>"
    yield "".join(f'<th scope="col" class="{c}">{_e(x)}</th>' for x, c in header)
    yield "</tr></thead><tbody>"
    for row in rows:
        cells = "".join(f'<td class="{c}">{_e(x)}</td>' for x, c in row)
        yield f"<tr>{cells}</tr>"
    yield "</tbody></table></div>"


def _functions(functions: tuple[FunctionRow, ...]) -> Iterator[str]:
    if not functions:
        return
    yield '<section aria-labelledby="ledger"><h2 id="ledger">Functions, by cost</h2>'
    names = ("time", "traces", "compiles")
    header = (
        ("function", ""),
        *[(name, "number") for name in names],
        ("why", ""),
        ("called from", ""),
    )
    yield from _table("Functions", header, [_function_row(f) for f in functions])
    yield "</section>"


def _function_row(f: FunctionRow) -> tuple[_Cell, ...]:
    where = "" if f.file is None else f"\n{place(f.file, f.line)}"
    objects = f" ({f.objects} objects)" if f.objects > 1 else ""
    calls = [f"{site} ({n})" if n > 1 else site for site, n in f.calls[:3]]
    more = [f"and {len(f.calls) - 3} more"] if len(f.calls) > 3 else []
    return (
        (f"{f.function}{objects}{where}", "name mono"),
        (show_seconds(f.seconds), "number"),
        (str(f.traces), "number"),
        (str(f.compiles), "number"),
        (", ".join(f"{n} {cause}" for cause, n in f.causes.items()), "why"),
        ("\n".join([*calls, *more]), "name mono"),
    )


def _notes(report: Report) -> Iterator[str]:
    if not report.notes:
        return
    yield '<section aria-labelledby="notes"><h2 id="notes">What was not seen</h2><ul>'
    for note in report.notes:
        yield f"<li>{_prose(note)}</li>"
    yield "</ul></section>"
