"""`explain`: why a function was traced or compiled again."""

import collections
import dataclasses
from typing import Any

from eqx_fastjit._jit import jitted_function

from ._shown import Shown
from ._words import plural, show_seconds, wrapped
from .compare._tables import shared, tables_of
from .record._events import Event, history, watch
from .record._why import title_of
from .rules._rules import Row
from .rules.functions import row_of
from .show._text import as_text, compilations, lines_of


_GONE = (
    "{} not explained: the arguments are gone. From now on they are described as they "
    "are passed: repeat the calls, and explain() again; or run `eqx-fastjit doctor`."
)
# Rows and columns of the text, unless all are asked for.
_ROWS, _COLUMNS = 5, 88


@dataclasses.dataclass(frozen=True, repr=False)
class Explanation(Shown):
    """Why functions were traced or compiled again, and what it cost.

    `str` of it is the text, and a notebook shows a page.

    **Fields:**

    - `function`: its name, or "all jitted functions".
    - `traces`, `compiles`: how often it was traced and compiled.
    - `seconds`: of tracing, lowering and compiling.
    - `rows`: what was compiled again, by what can be saved of it, as the doctor has it.
    - `gone`: how many, of functions without a row, could not be explained, as the
        arguments are gone.
    - `verbose`: whether the text has every edit, and every leaf of each compilation.
    - `events`: what was traced and compiled, in order.
    """

    function: str
    traces: int
    compiles: int
    seconds: float
    rows: tuple[Row, ...]
    gone: int = 0
    verbose: bool = False
    events: tuple[Event, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.function}: {self._summary()}"]
        if self.gone:
            lines += wrapped(self._not_explained(), "  ")

        rows = self.rows if self.verbose else self.rows[:_ROWS]
        events = self.events if self.verbose else ()
        for block in (*map(lines_of, rows), *compilations(events)):
            lines += as_text(block, _COLUMNS, self.verbose)

        if more := len(self.rows) - len(rows):
            lines.append(f"{plural(more, 'more row')}: explain(..., verbose=True)")
        return "\n".join(lines)

    def to_html(self) -> str:
        """The explanation as a page of its own, which loads nothing."""
        from .show._page import rows_page  # and with it jinja2

        summary = self._summary()
        if self.gone:
            summary += f". {self._not_explained()}"
        return rows_page(self.function, summary, self.rows, self.events)

    def _summary(self) -> str:
        counts = f"{plural(self.traces, 'trace')}, {plural(self.compiles, 'compile')}"
        summary = f"{counts}, {show_seconds(self.seconds)}"
        if not self.rows and not self.gone:
            summary += "; nothing was compiled again"
        return summary

    def _not_explained(self) -> str:
        return _GONE.format(plural(self.gone, "compilation"))


def describe_from_now_on(event: Event) -> None:
    """An observer that does nothing: what is observed is described as it happens."""


def explain(f: Any = None, /, *, verbose: bool = False) -> Explanation:
    """Why a function was traced or compiled again.

    **Arguments:**

    - `f`: a function or method wrapped by `eqx_fastjit.filter_jit`. Without it, all
        jitted functions of the process are explained together.
    - `verbose`: show every row, and every leaf that differed.

    **Returns:**

    An `Explanation`, which prints as text: the rows that the doctor has on it, with
    seconds, what differs, and what to edit. If one line made several functions (a
    lambda in a loop), it covers all of them. It covers the last 4,096 traces and
    compilations of the process.

    Static arguments are not kept alive for this. If one was changed in place, or its
    trace is dropped, and no row is left of the function, the text says how many
    compilations it cannot explain. From then on they are described as they happen:
    repeat the calls, and explain again.

    Raises `TypeError` if `f` was not wrapped by `eqx_fastjit`.
    """
    info = None if f is None else jitted_function(f).info
    name = "all jitted functions" if info is None else title_of(info)
    events = history(info)

    # What was compiled again, and what of it nothing is known of any more.
    rows: list[Row] = []
    told: set[object] = set()
    for table in tables_of(events):
        if (found := row_of(table)) is not None:
            rows += [found[0]] if found[0].parts else []
            told.update(shared(x.event) for x in table.rows)
    # Of one that compiled once, there is nothing to explain.
    counts = collections.Counter(shared(e) for e in events if e.compile)
    unknown = (shared(e) for e in events if e.compile and not e.signature)
    gone = sum(counts[x] > 1 for x in unknown if x not in told)
    if gone:
        watch(describe_from_now_on)

    return Explanation(
        name,
        sum(e.traced and not e.failed for e in events),
        sum(e.compile > 0 for e in events),
        sum(e.seconds for e in events),
        tuple(sorted(rows, key=lambda x: -x.saves)),
        gone,
        verbose,
        tuple(events),
    )
