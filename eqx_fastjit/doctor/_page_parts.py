"""What the report's page is made of: style, script, tables."""

import base64
import hashlib
import html
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple


# Of all pages, those of `insight` included: colours, fonts, what has the focus.
_BASE = """
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
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
"""

STYLE = """
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem;
  overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; }
h3 { font-size: 1rem; margin: 0; display: flex; flex-wrap: wrap; gap: .25rem .75rem;
  align-items: baseline; }
p { margin: .5rem 0; overflow-wrap: anywhere; }
a { color: var(--link); }
.dim { color: var(--dim); }
.good { color: var(--good); font-weight: 600; }
.mono, code, pre { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas,
  monospace; font-size: .875rem; }
.card, .scroll, .timeline, .compilation { background: var(--card);
  border: 1px solid var(--line); border-radius: .5rem; }
.card { border-left: .3rem solid var(--edge); padding: .9rem 1rem; margin: 0 0 1rem; }
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
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { padding: .4rem .75rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }
tbody tr:last-child td { border-bottom: 0; }
th { color: var(--dim); font-weight: 600; white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
td.name { min-width: 14rem; overflow-wrap: anywhere; white-space: pre-line; }
td.why { min-width: 9rem; }
.timeline { padding: .75rem; }
.timeline svg { display: block; overflow: visible; }
.timeline text { fill: var(--text); font-size: 12px; }
.timeline .tick { fill: var(--dim); font-size: 11px; }
.timeline line { stroke: var(--line); }
.timeline rect { fill: var(--part); stroke: var(--part); }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: 0 0 .75rem;
  padding: 0; list-style: none; font-size: .875rem; }
.legend svg { display: inline-block; vertical-align: -1px; margin-right: .4rem; }
summary { cursor: pointer; padding: .25rem 0; overflow-wrap: anywhere; }
.tall, details pre { max-height: 30rem; overflow-y: auto; }
details pre { padding: .5rem .75rem; }
.compilation { padding: .35rem .9rem; margin: 0 0 .4rem; }
.compilation[open] { padding-bottom: .9rem; }
.compilation .scroll { margin: .5rem 0; }
th button { all: unset; cursor: pointer; font: inherit; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
.search { display: none; margin: 0 0 .5rem; }
.scripted .search { display: block; }
.search input { font: inherit; padding: .3rem .6rem; width: min(24rem, 100%);
  color: var(--text); background: var(--card); border: 1px solid var(--line);
  border-radius: .35rem; }
[hidden] { display: none; }
.parts { display: flex; height: 1.1rem; border-radius: .35rem; overflow: hidden;
  border: 1px solid var(--line); margin: .5rem 0; }
.parts span { min-width: 1px; }
[class^=swatch-]::before { content: ""; display: inline-block; width: .7rem;
  height: .7rem; margin-right: .5rem; }
.parts span, [class^=swatch-]::before { background: var(--part, var(--dim)); }
.trace, .part-trace, .swatch-trace { --part: var(--trace); }
.lower, .part-lower, .swatch-lower { --part: var(--lower); }
.compile, .part-compile, .swatch-compile { --part: var(--compile); }
.first_run, .part-calls, .swatch-calls { --part: var(--first_run); }
.part-import, .swatch-import { --part: var(--line); }
.part-wait, .swatch-wait { --part: var(--high); }
.part-eager, .swatch-eager { --part: var(--medium); }
"""

# Search and sorting. Without it the page is the same, but for the two.
SCRIPT = """
document.documentElement.classList.add('scripted');
for (const input of document.querySelectorAll('.search input')) {
  const body = document.querySelector('#' + input.dataset.table + ' tbody');
  input.addEventListener('input', () => {
    const words = input.value.toLowerCase().split(/ +/);
    let shown = 0;
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
      shown += !row.hidden;
    }
    input.closest('.search').querySelector('output').textContent =
      input.value ? shown + ' of ' + body.rows.length : '';
  });
}
for (const button of document.querySelectorAll('th button')) {
  button.addEventListener('click', () => {
    const head = button.parentElement;
    const body = head.closest('table').tBodies[0];
    const down = head.getAttribute('aria-sort') !== 'descending';
    for (const other of head.parentElement.cells) other.removeAttribute('aria-sort');
    head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
    const value = row => {
      const cell = row.cells[head.cellIndex];
      return 'value' in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
    };
    const rows = [...body.rows].map(row => [value(row), row]);
    rows.sort(([a], [b]) =>
      (typeof a === 'number' ? a - b : a.localeCompare(b)) * (down ? -1 : 1));
    body.append(...rows.map(([, row]) => row));
  });
}
const open = () => {
  const target = document.getElementById(location.hash.slice(1));
  if (target && target.tagName === 'DETAILS') target.open = true;
};
addEventListener('hashchange', open);
open();
"""


def html_document(title: str, body: str, style: str = STYLE) -> str:
    """A whole page: a plain title, a body of HTML, and CSS on top of what all have.

    Nothing is loaded, and no script runs but `SCRIPT`.
    """
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; img-src data:"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{e(title)}</title>\n<style>{_BASE}{style}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def e(text: object) -> str:
    """Text, escaped."""
    return html.escape(str(text))


def prose(text: str) -> str:
    """Text with code in backticks."""
    return re.sub("`(.*?)`", r"<code>\1</code>", e(text), flags=re.DOTALL)


def code(label: str, inside: str) -> str:
    """Lines that can be scrolled by keyboard, with what screen readers say of them."""
    label = f'role="region" aria-label="{e(label)}"'
    return f'<pre tabindex="0" {label}><code>{inside}</code></pre>'


def section(name: str, title: str, *parts: Iterable[str]) -> Iterator[str]:
    """A section of the page, with its heading; nothing if it is empty."""
    if lines := [*itertools.chain(*parts)]:
        yield f'<section aria-labelledby="{name}"><h2 id="{name}">{title}</h2>'
        yield from lines
        yield "</section>"


class Cell(NamedTuple):
    """A cell of a table."""

    text: str
    cls: str = ""
    # To sort by, if that is not the text.
    value: float | None = None
    # The section of the page that it leads to.
    link: str = ""

    def html(self) -> str:
        text = e(self.text)
        if self.link:
            text = f'<a href="#{e(self.link)}">{text}</a>'
        value = "" if self.value is None else f' data-value="{self.value:g}"'
        return f'<td class="{self.cls}"{value}>{text}</td>'


def table(
    label: str,
    columns: tuple[tuple[str, str], ...],
    rows: list[tuple[Cell, ...]],
    *,
    name: str = "",
    cls: str = "",
) -> Iterator[str]:
    """A table that can be scrolled by keyboard; searched and sorted, if it has a name.

    `label` is what screen readers say; columns have a name and a class.
    """
    if name:
        yield (
            f'<p class="search"><label>Search: <input type="search" '
            f'data-table="{e(name)}"></label> <output class="dim"></output></p>'
        )
    identity = f' id="{e(name)}"' if name else ""
    yield (
        f'<div class="scroll {cls}" tabindex="0" role="region" '
        f'aria-label="{e(label)}"><table{identity}><thead><tr>'
    )
    for text, column in columns:
        inside = f'<button type="button">{e(text)}</button>' if name else e(text)
        yield f'<th scope="col" class="{column}">{inside}</th>'
    yield "</tr></thead><tbody>"
    for row in rows:
        yield f"<tr>{''.join(cell.html() for cell in row)}</tr>"
    yield "</tbody></table></div>"
