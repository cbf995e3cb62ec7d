"""Rows and rules: what costs, which rule says so, and what to edit.

Each rule has one line that says what, and one for the edit, in `rules.toml`, and a
section in `docs/rules.md`, which the tests run.
"""

import dataclasses
import functools
import importlib.resources
import tomllib
from typing import Any

from eqx_fastjit._facts import Place


class _Sparse:
    """In JSON, what is not known of it is absent."""

    def for_json(self: Any) -> dict[str, Any]:
        names = [x.name for x in dataclasses.fields(self) if x.name != "gain"]
        return {name: value for name in names if (value := getattr(self, name))}


@dataclasses.dataclass(frozen=True)
class Part(_Sparse):
    """One edit of a row, by one rule.

    **Fields:**

    - `rule`: its name, with a section in `docs/rules.md`.
    - `what`, `edit`: one line each. Without an edit, it has to be compiled.
    - `path`: of what differs, as the user would write it: `model.layers[0].rate`.
    - `values`: what that was, in order, each once.
    - `count`: how often it became another one.
    - `saves`: seconds that this edit alone saves.
    - `gain`: seconds that it saves in addition to those of the parts above it: these
        add up. `None` if it saves nothing without the part above it.
    - `other_data`: whether the program computes with other data then, such as a batch
        that is left out, or padded.
    - `line`: where the edit goes, if that is known.
    """

    rule: str
    what: str
    edit: str = ""
    path: str = ""
    values: tuple[str, ...] = ()
    count: int = 0
    saves: float = 0.0
    gain: float | None = 0.0
    other_data: bool = False
    line: Place | None = None


@dataclasses.dataclass(frozen=True)
class Row(_Sparse):
    """What can be saved at one place, by one or more edits.

    **Fields:**

    - `function`: what compiles, or waits.
    - `line`: the user's line that calls it.
    - `seconds`, `saves`: what it cost, and what all edits together save of that.
    - `later`: the part of `saves` that is saved in later runs, not in this one.
    - `other_data`: the part that is saved only if the program computes with other data.
    - `about`: whether the seconds are estimated, rather than counted.
    - `wanted`: seconds of other programs, which have to be compiled.
    - `compilations`, `programs`: how often it compiled, and for how many programs.
    - `parts`: the edits, what saves most first; what has none comes last.
    """

    function: str
    parts: tuple[Part, ...]
    line: Place | None = None
    seconds: float = 0.0
    saves: float = 0.0
    later: float = 0.0
    other_data: float = 0.0
    about: bool = False
    wanted: float = 0.0
    compilations: int = 0
    programs: int = 0

    @property
    def is_wrong(self) -> bool:
        """Whether results are at risk, rather than seconds."""
        return any(x.rule == "stale-value" for x in self.parts)


@functools.cache
def rules() -> dict[str, dict[str, str]]:
    """What happened and the edit, each by the rule's name, as texts with fields."""
    file = importlib.resources.files("eqx_fastjit.insight.rules") / "rules.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def part_of(rule: str, facts: dict[str, Any], **fields: Any) -> Part:
    """An instance of a rule, in its words."""
    what = rules()["what"].get(rule, "{differs}").format_map(facts)
    return Part(rule, what.rstrip(), rules()["edit"][rule].format_map(facts), **fields)
