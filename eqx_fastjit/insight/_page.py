"""The report as one HTML page, by jinja2, which escapes every text."""

import functools
import re

import jinja2
from markupsafe import escape, Markup

from ._report import footer, headline, Report
from ._source import source_line
from ._why import name_of, show_difference, why
from ._words import show_chain, show_place, show_seconds


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("eqx_fastjit.insight", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        seconds=show_seconds,
        place=show_place,
        chain=show_chain,
        prose=_prose,
        difference=show_difference,
        name=name_of,
        why=why,
    )
    return environment


def page(report: Report) -> str:
    """The page, which loads nothing."""
    notes = {""}

    def is_new(note: str) -> bool:
        """Whether it has not been said."""
        was_said = note in notes
        notes.add(note)
        return not was_said

    template = _environment().get_template("report.html")
    return template.render(
        report=report,
        headline=headline(report),
        footer=footer(report),
        source=source_line,
        first_note=is_new,
        share=lambda x: 100 * x / report.run.seconds if report.run.seconds else 0,
    )


def text_page(title: str, text: str) -> str:
    """A page of a text that is laid out already."""
    return _environment().get_template("text.html").render(title=title, text=text)


def in_notebook(html: str) -> str:
    """A page within a notebook, whose styles and scripts stay apart from its own."""
    # Its own height, once it is there; where scripts do not run, it scrolls.
    fit = "this.style.height=this.contentDocument.documentElement.scrollHeight+'px'"
    style = "width:100%;height:30em;border:0;color-scheme:light dark"
    return f'<iframe srcdoc="{escape(html)}" style="{style}" onload="{fit}"></iframe>'


def _prose(text: str) -> Markup:
    """A text with what is between backticks as code."""
    parts = re.split(r"`([^`]+)`", text)
    pieces = [
        Markup("<code>{}</code>").format(part) if i % 2 else escape(part)
        for i, part in enumerate(parts)
    ]
    return Markup("").join(pieces)
