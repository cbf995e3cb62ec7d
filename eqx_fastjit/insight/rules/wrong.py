"""Rows of what makes results wrong."""

from typing import Any

from eqx_fastjit.insight.record._stale import Stale
from eqx_fastjit.insight.record._why import line_of, name_of

from ._rules import part_of, Row


def stale_row(stale: Stale) -> Row:
    """The row of a value that has changed since a trace, which is used again."""
    event, read, first, last = stale
    name = name_of(event.function)
    facts = {"path": read.path, "first": first, "function": name}
    facts["last"] = f"another {last}" if last == first else last
    fields: Any = {"path": read.path, "values": (first, last), "line": read.place}
    part = part_of("stale-value", facts, **fields)
    return Row(name, (part,), line_of(event) or event.function.place)
