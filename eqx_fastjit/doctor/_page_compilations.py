"""The section on compilations of the report's page."""

import itertools
from collections.abc import Iterator

from eqx_fastjit._units import plural, show_bytes, show_seconds

from ._page_parts import Cell, code, e, section, table
from ._report import Compilation, grouped, Program, Report
from ._text import place


# Rows of the timeline, and compilations on it and below: more are no longer seen.
_MAX_LANES = 12
_MAX_BARS = 600
_STAGES = {
    "trace": "tracing (Python)",
    "lower": "lowering",
    "compile": "XLA compile",
    "first_run": "first run",
}
# Height of a row of the timeline, in pixels: its label, then its bars.
_LANE, _LABEL, _BAR = 46, 17, 16


def compilations(report: Report) -> Iterator[str]:
    """When it compiled, and a section for each time."""
    outer = tuple(c for c in report.compilations if not c.inside)
    if not outer:
        return
    legend = [
        '<li><svg width="11" height="11" aria-hidden="true">'
        f'<rect class="{name}" width="11" height="11"/></svg>{e(label)}</li>'
        for name, label in _STAGES.items()
    ]
    begin = ['<div class="timeline"><ul class="legend">', *legend, "</ul>"]
    svg = _svg(outer, report.seconds)
    yield from section("timeline", "When it compiled", begin, svg, ["</div>"])
    shown = sorted(report.compilations, key=lambda c: -c.seconds)[:_MAX_BARS]
    shown.sort(key=lambda c: c.number)
    yield from _all(shown, len(report.compilations))
    # Of an operation outside of jit the table says all.
    known = (_section(c) for c in shown if c.jit != "jax")
    yield from section("each", "Each compilation of a function", *known)


def _lanes(bars: tuple[Compilation, ...]) -> list[tuple[str, list[Compilation]]]:
    """A row for each function, the most expensive first; the last has all others."""
    longest = sorted(bars, key=lambda bar: -bar.seconds)[:_MAX_BARS]
    outside = "operations outside of jit"
    lanes = grouped(longest, lambda bar: outside if bar.jit == "jax" else bar.function)
    order = sorted(lanes.items(), key=lambda lane: -sum(b.seconds for b in lane[1]))
    if len(order) > _MAX_LANES:
        rest = order[_MAX_LANES - 1 :]
        others = [bar for _, lane in rest for bar in lane]
        order = [*order[: _MAX_LANES - 1], (f"{len(rest)} others", others)]
    return order


def _svg(shown: tuple[Compilation, ...], seconds: float) -> Iterator[str]:
    lanes = _lanes(shown)
    total = max([seconds, *[b.start + b.seconds for b in shown], 1e-3])
    height = len(lanes) * _LANE + 24
    what = plural(len(shown), "compilation")
    label = f"Timeline of {what}; the table below has them all"
    yield f'<svg width="100%" height="{height}" role="img" aria-label="{e(label)}">'
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
        yield f'<text x="2" y="{top + 13}">{e(_cut(text))}</text>'
        for bar in sorted(bars, key=lambda bar: bar.start):
            yield from _rects(bar, top + _LABEL + 2, total)
    yield "</svg>"


def _cut(text: str) -> str:
    return text if len(text) <= 48 else f"{text[:22]}…{text[-25:]}"


def _rects(bar: Compilation, y: int, total: float) -> Iterator[str]:
    yield f"<g><title>{e(_bar_text(bar))}</title>"
    for name, start, seconds in bar.stages():
        yield (
            f'<rect class="{name}" x="{100 * start / total:.3f}%" y="{y}" '
            f'width="{100 * seconds / total:.3f}%" height="{_BAR}"/>'
        )
    yield "</g>"


def _bar_text(bar: Compilation) -> str:
    cause = f" ({bar.cause})" if bar.cause else ""
    return f"{bar.function}{cause} at {bar.site or '?'}: {', '.join(_stages(bar))}"


def _stages(c: Compilation) -> list[str]:
    return [f"{_STAGES[name]} {show_seconds(x)}" for name, _, x in c.stages()]


def _step(total: float) -> float:
    """Between two marks of the axis: 1, 2 or 5 times a power of ten."""
    steps = (x * 10.0**n for n in itertools.count(-3) for x in (1, 2, 5))
    return next(step for step in steps if total / step <= 6)


def _all(shown: list[Compilation], n: int) -> Iterator[str]:
    which = f"The {_MAX_BARS} longest of " if n > _MAX_BARS else "All " * (n > 1)
    number = "number"
    columns = (("#", number), ("at", number), ("took", number), ("function", ""))
    columns += (("why", ""), ("leaf", ""), ("called from", ""))
    rows = [
        (
            Cell(str(c.number), number, c.number, "" if c.jit == "jax" else _id(c)),
            Cell(f"{c.start:.2f} s", number, c.start),
            Cell(show_seconds(c.seconds), number, c.seconds),
            Cell(c.function, "name mono"),
            Cell(c.cause + " (inside of another)" * c.inside, "why"),
            Cell(c.changes[0].path if c.changes else "", "name mono"),
            Cell(c.site, "name mono"),
        )
        for c in shown
    ]
    every = table("Compilations", columns, rows, name="all-compilations", cls="tall")
    yield from section("compilations", f"{which}{plural(n, 'compilation')}", every)


def _id(c: Compilation) -> str:
    return f"compilation-{c.number}"


# --- one compilation -----------------------------------------------------------------


def _section(c: Compilation) -> Iterator[str]:
    yield (
        f'<details class="compilation" id="{_id(c)}"><summary><span class="mono">'
        f"#{c.number} {e(c.function)}</span> \u2014 {show_seconds(c.seconds)}, "
        f"{e(c.cause)}</summary>"
    )
    where = "" if c.file is None else f"Defined at {place(c.file, c.line)}. "
    inside = " It is a part of another function\u2019s compilation." * c.inside
    yield f"<p>{e(where)}Called at {e(c.site or '?')}.{inside}</p>"
    yield from _changes(c)
    parts = [*_stages(c), *["read from the persistent cache"] * c.cached]
    yield f"<p>{e(', '.join(parts))}.</p>"
    if c.signature:
        yield f'<p class="dim">Arguments: <code>{e(c.signature)}</code></p>'
    yield from _cost(c)
    if c.program is not None:
        yield from _texts(c.program)
    yield "</details>"


def _changes(c: Compilation) -> Iterator[str]:
    if not c.changes:
        return
    earlier = f", at {c.earlier}," if c.earlier else ""
    yield f"<p>Unlike the nearest earlier call{e(earlier)} it had:</p>"
    rows: list[tuple[Cell, ...]] = []
    for x in c.changes:
        values = Cell(x.old, "mono"), Cell(x.new, "mono")
        rows.append((Cell(x.path, "name mono"), Cell(x.what), *values))
    columns = (("leaf", ""), ("what", ""), ("before", ""), ("now", ""))
    yield from table(f"What differs in compilation {c.number}", columns, rows)


def _cost(c: Compilation) -> Iterator[str]:
    counts: dict[str, float | None] = {"equations in the jaxpr": c.equations}
    sizes = {"arrays among the arguments": c.argument_bytes}
    if (program := c.program) is not None:
        counts["floating-point operations"] = program.flops
        sizes = {
            "memory read and written": program.bytes_accessed,
            "arguments": program.argument_bytes,
            "results": program.result_bytes,
            "temporaries": program.temporary_bytes,
            "machine code": program.code_bytes,
        }
    facts = [(name, f"{x:,.0f}") for name, x in counts.items() if x is not None]
    facts += [(name, show_bytes(x)) for name, x in sizes.items() if x is not None]
    if facts:
        label = f"Cost and memory of compilation {c.number}"
        rows = [(Cell(name), Cell(text, "number")) for name, text in facts]
        columns = (("for one run, estimated by XLA" if program else "size", ""),)
        yield from table(label, (*columns, ("", "number")), rows)


def _texts(program: Program) -> Iterator[str]:
    for label, text in (
        ("jaxpr", program.jaxpr),
        ("StableHLO, as it was lowered", program.stablehlo),
        ("HLO, as XLA optimized it", program.hlo),
    ):
        if text:
            inside = f"<summary>{label}</summary>{code(label, e(text))}"
            yield f"<details>{inside}</details>"
