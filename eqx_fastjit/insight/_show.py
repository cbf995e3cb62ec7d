"""Results as text and as HTML for notebooks."""

import html
from collections.abc import Sequence


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text; all but the first and the last are numbers, to the right."""
    table = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = [
            cell.ljust(width) if i in (0, len(row) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as an HTML table, escaped."""

    def line(tag: str, cells: Sequence[str]) -> str:
        inside = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
        return f"<tr>{inside}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><thead>{line('th', header)}</thead><tbody>{body}</tbody></table>"


def html_text(text: str) -> str:
    """Text as it stands, escaped."""
    return f"<pre>{html.escape(text)}</pre>"


def seconds(value: float) -> str:
    """A duration in the unit that suits it."""
    if value >= 1:
        return f"{value:.2f} s"
    if value >= 1e-3:
        return f"{value * 1e3:.1f} ms"
    return f"{value * 1e6:.0f} us"


def plural(n: int, noun: str) -> str:
    """`1 trace`, `2 traces`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
