"""A self-contained HTML page for a report."""

from html import escape


# Nothing is loaded, whatever is put into a page.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; font-src data:"
)
_STYLE = """
:root { color-scheme: light dark; --bg: #fbfbf9; --card: #fff; --text: #1d2125;
  --dim: #5a636d; --line: #dcdfe3; --hit: #fff1c2; --link: #0b57b8; }
@media (prefers-color-scheme: dark) { :root { --bg: #15181c; --card: #1d2126;
  --text: #e4e7ea; --dim: #a3adb8; --line: #353c44; --hit: #4a3d0f;
  --link: #8ab8f5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 4rem;
  background: var(--bg); color: var(--text);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
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
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
@media print { .eqx-fastjit > div { break-inside: avoid; } }
"""


def html_document(title: str, body: str, style: str = "") -> str:
    """A whole page.

    **Arguments:**

    - `title`: plain text.
    - `body`: HTML.
    - `style`: CSS on top of what all pages have.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{style}</style></head>"
        f"<body>\n{body}\n</body></html>\n"
    )
