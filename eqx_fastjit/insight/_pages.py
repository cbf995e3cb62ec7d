"""A self-contained HTML page for a report."""

from eqx_fastjit.doctor import _page_parts


_STYLE = """
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


def html_document(title: str, body: str, style: str = "") -> str:
    """A whole page, with CSS on top of that of all reports."""
    return _page_parts.html_document(title, body, f"{_STYLE}{style}")
