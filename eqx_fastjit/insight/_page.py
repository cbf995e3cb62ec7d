"""The report as one HTML page, by jinja2, which escapes every text."""

import jinja2
from markupsafe import escape

from ._compare import reasons_of
from ._report import headline, Report
from ._sections import section_of
from ._why import name_of
from ._words import show_chain, show_place, show_seconds, source_line


_environment = jinja2.Environment(
    loader=jinja2.PackageLoader("eqx_fastjit.insight", "templates"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)
_environment.filters |= {
    "seconds": show_seconds,
    "place": show_place,
    "chain": show_chain,
    "name": name_of,
    "source": source_line,
    "section": section_of,
}


def page(report: Report) -> str:
    """The page, which loads nothing and runs nothing."""
    rules = dict.fromkeys(part.rule for row in report.rows for part in row.parts)
    template = _environment.get_template("report.html")
    return template.render(
        report=report,
        headline=headline(report),
        rules=list(rules),
        reasons=reasons_of(report.run.events, report.run.before),
        share=lambda x: 100 * x / report.run.seconds if report.run.seconds else 0,
    )


def in_notebook(html: str) -> str:
    """A page within a notebook, whose styles stay apart from its own."""
    # Its own height, once it is there; where scripts do not run, it scrolls.
    fit = "this.style.height=this.contentDocument.documentElement.scrollHeight+'px'"
    style = "width:100%;height:30em;border:0;color-scheme:light dark"
    return f'<iframe srcdoc="{escape(html)}" style="{style}" onload="{fit}"></iframe>'
