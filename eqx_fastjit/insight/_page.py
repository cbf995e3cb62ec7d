"""The report as one HTML page, by jinja2, which escapes every text."""

import linecache
import re
from typing import Any, NamedTuple

import jinja2
from markupsafe import escape, Markup

from ._causes import Finding
from ._log import show_difference
from ._report import footer, headline, Report
from ._text import why
from ._words import show_chain, show_place, show_seconds


# Lines of source around the one of a finding.
_AROUND = 3


class SourceLine(NamedTuple):
    """A line of the user's source."""

    number: int
    text: str
    is_hit: bool


def page(report: Report) -> str:
    """The page, which loads nothing."""
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
        why=_all_causes,
        difference=show_difference,
    )
    template = environment.get_template("report.html")
    return template.render(
        report=report,
        headline=headline(report),
        footer=footer(report),
        source=_source,
        share=lambda x: 100 * x / report.seconds if report.seconds else 0,
    )


def _prose(text: str) -> Markup:
    """A text with what is between backticks as code."""
    parts = re.split(r"`([^`]+)`", text)
    pieces = [
        Markup("<code>{}</code>").format(part) if i % 2 else escape(part)
        for i, part in enumerate(parts)
    ]
    return Markup("").join(pieces)


def _all_causes(row: Any) -> str:
    return why(row, most=len(row.causes))


def _source(finding: Finding) -> list[SourceLine]:
    if finding.line is None:
        return []
    lines = linecache.getlines(finding.line.file)
    hit = finding.line.line
    numbers = range(max(1, hit - _AROUND), min(len(lines), hit + _AROUND) + 1)
    return [SourceLine(n, lines[n - 1].rstrip(), n == hit) for n in numbers]
