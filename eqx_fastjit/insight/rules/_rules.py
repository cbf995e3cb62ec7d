"""What a rule is, the rows and parts that are instances of rules, and what is asked of
each file of rules.

Each file here has the rules of one class, each with its condition and its words:

- `RULES`: its rules, in the order of `docs/rules.md`, which has a section for each.
- `rows(case)`: the rows that it has on a run. A row that spares compilations takes
    their seconds from `case.left`, so that no second is saved twice.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

from eqx_fastjit._facts import Place
from eqx_fastjit.insight.compare._objects import Object
from eqx_fastjit.insight.compare._table import Table
from eqx_fastjit.insight.compare._tables import tables_of
from eqx_fastjit.insight.record._events import Event
from eqx_fastjit.insight.record._run import Run


class _Sparse:
    """In JSON, what is not known of it is absent."""

    def for_json(self: Any) -> dict[str, Any]:
        return {k: x for k, x in vars(self).items() if x and k != "gain"}


@dataclasses.dataclass(frozen=True)
class Part(_Sparse):
    """One edit of a row, by one rule.

    **Fields:**

    - `rule`: its name, with a section in `docs/rules.md`.
    - `what`, `edit`: one line each. Without an edit, it has to be compiled.
    - `path`: of what differs, as the user would write it: `model.layers[0].rate`.
    - `values`: what that was, in order, each once.
    - `count`: how many others it became; or how often it compiled, or ran.
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
    - `cost`: what it cost in each iteration, in words.
    - `bytes`: of arrays that could be donated.
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
    cost: str = ""
    bytes: int = 0
    about: bool = False
    wanted: float = 0.0
    compilations: int = 0
    programs: int = 0

    @property
    def is_wrong(self) -> bool:
        """Whether results are at risk, rather than seconds."""
        return any(x.rule == "stale-value" for x in self.parts)


@dataclasses.dataclass(frozen=True)
class Rule:
    """A named condition, and what is said of a case that meets it.

    Both texts are one line, with fields in braces for what is known of the case.
    """

    name: str
    # What to edit. Without a text, it has to be compiled.
    edit: str
    # What happened; by default what differs, with its values.
    what: str = "{differs}"
    # Whether it is the rule of something that calls differ in, and that no rule before
    # it in its file is of.
    applies: Callable[[Object], bool] | None = None
    # Whether the program computes with other data after the edit.
    other_data: bool = False

    def part(self, facts: Any, **fields: Any) -> Part:
        """An instance of it, in its words, of which `facts[...]` has the fields.

        What it saves is saved in addition to the parts above it, unless that is told.
        """
        what = self.what.format_map(facts).rstrip()
        edit = self.edit.format_map(facts)
        usual = {"gain": fields.get("saves", 0.0), "other_data": self.other_data}
        return Part(self.name, what, edit, **{**usual, **fields})


def rule_of(rules: Iterable[Rule], found: Object) -> Rule | None:
    """The first of some rules that is one of an object."""
    return next((x for x in rules if x.applies and x.applies(found)), None)


class Case:
    """A run, and what of it no row has spared so far."""

    def __init__(self, run: Run, limit: float):
        self.run = run
        # The seconds below which nothing has a row.
        self.limit = limit
        compiled = [e for e in run.events if e.compile and not e.failed]
        self.left: dict[Event, float] = {e: e.seconds for e in compiled}

    @functools.cached_property
    def tables(self) -> list[Table]:
        """The compilations of each function."""
        return tables_of(self.run.events, self.run.before)

    def spare(self, row: Row, events: Iterable[Event]) -> None:
        """A row that is shown spares these compilations as a whole."""
        if row.saves >= self.limit:
            for event in events:
                self.left.pop(event, None)
