"""The report as one HTML page, by jinja2, which escapes every text."""

import linecache

import jinja2
from markupsafe import escape

from eqx_fastjit.insight._words import show_place, show_seconds

from ._report import headline, Report
from ._sections import sections
from ._text import compilations, lines_of


_environment = jinja2.Environment(
    loader=jinja2.PackageLoader("eqx_fastjit.insight.show", "templates"),
    autoescape=True,
    trim_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def page(report: Report) -> str:
    """The page, which loads nothing and runs nothing."""
    run = report.run
    parts = [part for row in report.rows for part in row.parts]
    return _environment.get_template("report.html").render(
        report=report,
        headline=headline(report),
        rows=map(lines_of, report.rows),
        compilations=list(compilations(run.events, run.before)),
        rules={x.rule: sections().get(x.rule, "") for x in parts},
        share=lambda x: f"{x / run.seconds if run.seconds else 0:.0%}",
        source=lambda x: linecache.getline(x.file, x.line).strip(),
        show_place=show_place,
        show_seconds=show_seconds,
    )


def in_notebook(html: str) -> str:
    """A page within a notebook, whose styles stay apart from its own."""
    # Its own height, once it is there; where scripts do not run, it scrolls.
    fit = "this.style.height=this.contentDocument.documentElement.scrollHeight+'px'"
    style = "width:100%;height:30em;border:0;color-scheme:light dark"
    return f'<iframe srcdoc="{escape(html)}" style="{style}" onload="{fit}"></iframe>'
