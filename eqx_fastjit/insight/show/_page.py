"""HTML pages by jinja2, which escapes every text: the report, and other results.

A page loads nothing and runs nothing.
"""

import linecache
from collections.abc import Iterable
from typing import Any

import jinja2
from markupsafe import escape

from eqx_fastjit.insight._words import show_place, show_seconds
from eqx_fastjit.insight.record._events import Event
from eqx_fastjit.insight.rules._rules import Row

from ._report import headline, Report
from ._sections import sections
from ._text import compilations, Line, lines_of


_environment = jinja2.Environment(
    loader=jinja2.PackageLoader("eqx_fastjit.insight.show", "templates"),
    autoescape=True,
    trim_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def page(report: Report) -> str:
    """The page of a report."""
    run = report.run
    summary = headline(report)
    if run.exit_code:
        summary += f"; exit code {run.exit_code}"

    return rows_page(
        run.program,
        summary,
        report.rows,
        run.events,
        run.before,
        template="report.html",
        notes=run.notes,
        report=report,
        share=lambda x: f"{x / run.seconds if run.seconds else 0:.0%}",
    )


def rows_page(
    title: str,
    summary: str,
    rows: Iterable[Row],
    events: Iterable[Event],
    before: Iterable[Event] = (),
    **fields: Any,
) -> str:
    """A page of rows, of the compilations, and of the rules that the rows name."""
    rows = list(rows)
    parts = [part for row in rows for part in row.parts]
    lists = {"What can be saved": [lines_of(row) for row in rows]} if rows else {}
    return lists_page(
        title,
        summary,
        lists,
        compilations=list(compilations(events, before)),
        rules={x.rule: sections().get(x.rule, "") for x in parts},
        **fields,
    )


def lists_page(
    title: str,
    summary: str,
    lists: dict[str, list[list[Line]]],
    *,
    template: str = "page.html",
    **fields: Any,
) -> str:
    """A page of lists of blocks, each list under its heading."""
    defaults = {"compilations": [], "rules": {}, "notes": []}
    return _environment.get_template(template).render(
        title=title,
        summary=summary,
        lists=lists,
        source=lambda place: linecache.getline(place.file, place.line).strip(),
        show_place=show_place,
        show_seconds=show_seconds,
        **{**defaults, **fields},
    )


def in_notebook(html: str) -> str:
    """A page within a notebook, whose styles stay apart from its own."""
    # Its own height, once it is there; where scripts do not run, it scrolls.
    fit = "this.style.height=this.contentDocument.documentElement.scrollHeight+'px'"
    style = "width:100%;height:30em;border:0;color-scheme:light dark"
    return f'<iframe srcdoc="{escape(html)}" style="{style}" onload="{fit}"></iframe>'
