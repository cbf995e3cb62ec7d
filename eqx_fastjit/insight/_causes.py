"""Findings: what costs, in words, and what to do about it.

A cause has attributes, such as a ragged last batch, each with a sentence and a fix of
its own. These are in one table, `causes.toml`.
"""

import dataclasses
import functools
import importlib.resources
import tomllib
from dataclasses import field
from typing import Any

from eqx_fastjit._facts import Place

from ._words import plural, show_seconds


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that costs, in words: how much, why, what to do, and what that saves.

    A row of the report, and the details of it. A finding with several causes has a part
    for each, which is a finding, too.
    """

    # One of the seven, "failed", "outside of filter_jit" or "stale value"; or what
    # would save time.
    cause: str
    # What is special about it, such as "ragged batch"; the cause again if nothing is.
    attribute: str
    says: str
    fix: str
    # In a few words, for the row: "`optim` made again".
    what: str = ""
    # In a few words, what to write.
    edit: str = ""
    # What is true of every fix of this kind, in sentences. A report has it once.
    note: str = ""
    # What it cost, and what the edit saves of that.
    seconds: float = 0.0
    saves: float = 0.0
    # The compilations that are not needed then.
    spares: int = 0
    # What it saves, in words, where seconds do not say it: "nothing by itself".
    gain: str = ""
    line: Place | None = None
    leaf: str = ""
    # Of compilations.
    count: int = 0
    # Names of the functions that were compiled, and how often.
    functions: dict[str, int] = field(default_factory=dict[str, int])
    # Function and the user's lines that led to it, and how often.
    calls: dict[str, int] = field(default_factory=dict[str, int])
    # All leaves that differed, the first time: "`n`: 1 -> 2".
    changes: tuple[str, ...] = ()
    parts: tuple["Finding", ...] = ()

    def kind(self) -> str:
        """Cause and attribute."""
        is_plain = self.attribute == self.cause
        return self.cause if is_plain else f"{self.cause} ({self.attribute})"

    def title(self) -> str:
        """Cause, attribute, count and seconds."""
        count = [plural(self.count, "compilation")] * (self.count > 0)
        cost = ", ".join([*count, show_seconds(self.seconds)])
        return f"{self.kind()}: {cost}" if self.seconds else self.kind()


@functools.cache
def table() -> dict[str, dict[str, dict[str, str]]]:
    """By cause and attribute: what happened (`says`), and the `fix`."""
    file = importlib.resources.files("eqx_fastjit.insight") / "causes.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def make_finding(
    cause: str, facts: dict[str, Any], attribute: str | None = None, **fields: Any
) -> Finding:
    """A finding in the words of the table, filled in with facts.

    The table has `says` and `fix`, and for some `what`, `edit` and `note`.
    """
    attribute = attribute or cause
    text = {k: v.format_map(facts) for k, v in table()[cause][attribute].items()}
    return Finding(cause, attribute, **{**text, **fields})
