"""Reports as plain text and as HTML, without other packages."""

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from eqx_fastjit.doctor._page_parts import e
from eqx_fastjit.doctor._text import columns


class Table(NamedTuple):
    """A part of a report."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    # Said below the table.
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """With columns padded to the same width; numbers to the right."""
        cells = [[str(x) for x in row] for row in (self.header, *self.rows)]
        lines = columns(cells, self._number_columns()) if self.rows else ["none"]
        return "\n  ".join([self.title, *lines, *self.notes])

    def _number_columns(self) -> list[bool]:
        return [all(map(_is_number, column)) for column in zip(*self.rows, strict=True)]

    def html(self) -> str:
        """As an HTML section. Every text is escaped."""
        numbers = [' class="number"' if x else "" for x in self._number_columns()]

        def line(tag: str, cells: Sequence[Any]) -> str:
            inside = "".join(
                f"<{tag}{cls}>{e(x)}</{tag}>"
                for x, cls in zip(cells, numbers, strict=True)
            )
            return f"<tr>{inside}</tr>"

        body = ["<p>none</p>"]
        if self.rows:
            body = [
                f"<div><table><thead>{line('th', self.header)}</thead><tbody>",
                *[line("td", row) for row in self.rows],
                "</tbody></table></div>",
            ]
        notes = [f"<p>{e(note)}</p>" for note in self.notes]
        return "\n".join([f"<h3>{e(self.title)}</h3>", *body, *notes])


def html_text(text: str) -> str:
    """Text as it stands, escaped."""
    return f"<pre>{e(text)}</pre>"


_NUMBER = re.compile(
    r"(>=|[-+<>~])?\d[\d.,e+-]*( ?(min|s|ms|us|[KMG]?i?B|%|x))?( \d+ s)?"
)


def _is_number(x: Any) -> bool:
    text = str(x).strip()
    return text in ("", "-") or _NUMBER.fullmatch(text) is not None


class Report:
    """The base class of the results of `insight`. `str(report)` is for people."""

    def tables(self) -> list[Table]:
        raise NotImplementedError

    def title(self) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n\n".join([self.title(), *[t.text() for t in self.tables()]])

    def html(self, first: str = "") -> str:
        """The title, what comes first, and the tables."""
        sections = "\n".join(table.html() for table in self.tables())
        head = f'<div class="eqx-fastjit"><h2>{e(self.title())}</h2>{first}'
        return f"{head}\n{sections}\n</div>"

    def _repr_html_(self) -> str:
        return (
            "<style>.eqx-fastjit table {border-collapse: collapse}\n"
            ".eqx-fastjit td, .eqx-fastjit th {padding: 0.1em 0.8em 0.1em 0;\n"
            "text-align: left; vertical-align: top}\n"
            ".eqx-fastjit .number {text-align: right; white-space: nowrap;\n"
            "font-variant-numeric: tabular-nums}\n"
            f".eqx-fastjit div {{overflow-x: auto}}</style>\n{self.html()}"
        )


def show_type(x: Any) -> str:
    """Dtype and shape of an array or of an abstract value."""
    shape = ",".join(map(str, getattr(x, "shape", ())))
    return f"{getattr(x, 'dtype', type(x).__name__)}[{shape}]"


def nbytes(x: Any) -> int:
    """The bytes that an array of this shape and dtype takes."""
    shape = getattr(x, "shape", ())
    if not all(isinstance(n, int) for n in shape):  # a symbolic dimension
        return 0
    return math.prod(shape) * getattr(getattr(x, "dtype", None), "itemsize", 0)


# Of a page, on top of that of all pages.
PAGE_STYLE = """
body { max-width: 72rem; }
h2 { font-size: 1.4rem; line-height: 1.3; overflow-wrap: anywhere; }
h3 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
h4 { font-size: 1rem; margin: 1.5rem 0 .25rem; }
p { margin: .5rem 0; color: var(--dim); max-width: 60rem; }
.eqx-fastjit > div, .scroll { overflow-x: auto; background: var(--card);
  border: 1px solid var(--line); border-radius: .5rem; padding: .25rem .75rem; }
.eqx-fastjit table { width: 100%; font-size: .9rem; }
.eqx-fastjit th { color: var(--dim); font-weight: 600; white-space: nowrap; }
.eqx-fastjit td, .eqx-fastjit th { padding: .35rem .8rem .35rem 0;
  border-bottom: 1px solid var(--line); }
.eqx-fastjit td:last-child:not(.number) { min-width: 14rem; }
.eqx-fastjit tbody tr:last-child td { border-bottom: 0; }
@media print { .eqx-fastjit > div { break-inside: avoid; } }
"""
