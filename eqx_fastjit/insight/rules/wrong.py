"""Wrong results: the rule of values that a trace uses though they have changed."""

from collections.abc import Iterator

from eqx_fastjit.insight.record._why import line_of, name_of

from ._rules import Case, Row, Rule


STALE = Rule(
    "stale-value",
    "pass it as an argument",
    "{path} is {last}, and {function} uses {first}",
)

RULES = (STALE,)


def rows(case: Case) -> Iterator[Row]:
    """Values that have changed since a trace, which was called again."""
    for event, read, first, last in case.run.stale:
        name = name_of(event.function)
        now = f"another {last}" if last == first else last
        facts = {"path": read.path, "first": first, "last": now, "function": name}
        part = STALE.part(facts, path=read.path, values=(first, last), line=read.place)
        yield Row(name, (part,), line_of(event) or event.function.place)
