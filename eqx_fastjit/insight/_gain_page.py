"""The report of `eqx-fastjit gain` as a page."""

from html import escape

from eqx_fastjit._units import show_seconds
from eqx_fastjit.doctor._page_parts import html_document

from ._gain import Gain
from ._table import PAGE_STYLE


_STYLE = """
.bars { display: grid; grid-template-columns: max-content 1fr max-content;
  gap: .4rem .8rem; align-items: center; margin: 1rem 0; }
.bar { display: flex; height: 1.4rem; border-radius: .25rem; overflow: hidden; }
.bar i { display: block; min-width: 1px; }
.key { display: flex; flex-wrap: wrap; gap: .25rem 1.2rem; list-style: none;
  padding: 0; margin: 0; }
.key i { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem;
  margin-right: .4rem; }
.compiling { background: #d07a1e } .device { background: #4c9a6a }
.overhead { background: #b3261e } .rest { background: #8a94a0 }
"""
_WORDS = {
    "compiling": "compiling",
    "device": "the device",
    "overhead": "overhead of calls",
    "rest": "all else",
}


def page(gain: Gain) -> str:
    """A self-contained page. Every text is escaped."""
    return html_document(
        f"Gain: {gain.program}", gain.html(_bars(gain)), PAGE_STYLE + _STYLE
    )


def _bars(gain: Gain) -> str:
    """Both wall times, to one scale, with their parts."""
    names = {"equinox": "equinox.filter_jit", "ours": "eqx_fastjit"}
    parts = {whose: gain.parts(whose) for whose in names}
    longest = max(sum(p.values()) for p in parts.values()) or 1.0
    rows: list[str] = []
    for whose, name in names.items():
        inside = "".join(
            f'<i class="{part}" style="width:{100 * x / longest:.2f}%" '
            f'title="{_WORDS[part]}: {show_seconds(x)}"></i>'
            for part, x in parts[whose].items()
        )
        total = show_seconds(sum(parts[whose].values()))
        rows.append(
            f'<span>{escape(name)}</span><span class="bar">{inside}</span>'
            f"<span>{total}</span>"
        )
    key = "".join(
        f'<li><i class="{part}"></i>{word}</li>' for part, word in _WORDS.items()
    )
    return f'<section class="bars">{"".join(rows)}</section><ul class="key">{key}</ul>'
