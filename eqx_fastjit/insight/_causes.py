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


# The share of what something costs from which it is not told what can be saved.
_NEARLY_ALL = 0.95


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that costs, in words: how much, why, what to do, and what that saves.

    A row of the report, and the details of it.

    **Fields:**

    - `cause`: one of the seven, "failed", "outside of filter_jit" or "stale value"; or
        what would save time.
    - `attribute`: what is special about it, such as "ragged batch"; the cause again if
        nothing is.
    - `says`, `fix`: what happened and what to do, in sentences.
    - `what`, `edit`: the same in a few words, for the row.
    - `note`: what is true of every fix of this kind. A report has it once.
    - `seconds`, `saves`: what it cost, and what the edit saves of that.
    - `otherwise`: the part of `saves` that is saved only if the program computes with
        other data: a batch left out, lengths cut or padded, one dtype. Below zero if
        with the same data more is saved.
    - `spares`: the compilations that are not needed then.
    - `gain`: what it saves, in words, where seconds do not say it.
    - `line`: file, line and function of the user's call.
    - `leaf`: the path of what differed first, `model.layers[0].weight`.
    - `count`: of compilations.
    - `functions`: the names of what was compiled, and how often.
    - `calls`: function and the user's lines that led to it, and how often.
    - `changes`: all leaves that differed, the first time: "`n`: 1 -> 2".
    - `parts`: a finding for each of several causes.
    """

    cause: str
    attribute: str
    says: str
    fix: str
    what: str = ""
    edit: str = ""
    note: str = ""
    seconds: float = 0.0
    saves: float = 0.0
    otherwise: float = 0.0
    spares: int = 0
    gain: str = ""
    line: Place | None = None
    leaf: str = ""
    count: int = 0
    functions: dict[str, int] = field(default_factory=dict[str, int])
    calls: dict[str, int] = field(default_factory=dict[str, int])
    changes: tuple[str, ...] = ()
    parts: tuple["Finding", ...] = ()

    @property
    def is_later(self) -> bool:
        """Whether it saves nothing in this run, but in later ones."""
        return self.cause in ("persistent cache", "host callbacks")

    def kind(self) -> str:
        """Cause and attribute."""
        is_plain = self.attribute == self.cause
        return self.cause if is_plain else f"{self.cause} ({self.attribute})"

    def title(self) -> str:
        """Cause, attribute, count and seconds, and what of these can be saved."""
        count = [plural(self.count, "compilation")] * (self.count > 0)
        cost = ", ".join([*count, show_seconds(self.seconds)])
        if 0 < self.saves < _NEARLY_ALL * self.seconds and self.count:
            cost += f", of which {show_seconds(self.saves)} can be saved"
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

    The table has `says` and `fix`, and for some `what`, `edit` or `hint`, and `note`.
    """
    attribute = attribute or cause
    text = {k: v.format_map(facts) for k, v in table()[cause][attribute].items()}
    if "hint" in text:
        text["edit"] = text.pop("hint")
    return Finding(cause, attribute, **{**text, **fields})
