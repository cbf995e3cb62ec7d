"""`explain`: why a function was traced or compiled again."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from eqx_fastjit._jit import jitted_function

from ._advice import Diagnosis, finding_of
from ._causes import Finding
from ._events import Event, history, is_watched, watch
from ._groups import group
from ._programs import add_programs
from ._shown import Shown
from ._why import arguments_of, is_first, line_of, title_of
from ._words import listed, plural, show_place, show_seconds, wrapped


_GONE = (
    "{} not explained: the arguments are gone. From now on they are described as they "
    "are passed: repeat the calls, and explain() again; or run `eqx-fastjit doctor`."
)
# Lines of the text, unless all are asked for.
_LINES = 20


@dataclasses.dataclass(frozen=True, repr=False)
class Explanation(Shown):
    """Why functions were traced or compiled again, and what it cost.

    `str` of it is the text.

    **Fields:**

    - `function`: its name, or "all jitted functions".
    - `traces`, `compiles`: how often it was traced and compiled.
    - `seconds`: of tracing, lowering and compiling.
    - `findings`: each reason, the most expensive first; first calls are none.
    - `gone`: how many could not be explained, as the arguments are gone.
    - `verbose`: whether the text has every cause and every leaf.
    """

    function: str
    traces: int
    compiles: int
    seconds: float
    findings: tuple[Finding, ...]
    gone: int = 0
    verbose: bool = False

    def __str__(self) -> str:
        counts = f"{plural(self.traces, 'trace')}, {plural(self.compiles, 'compile')}"
        lines = [f"{self.function}: {counts}, {show_seconds(self.seconds)}"]
        if self.gone:
            lines += wrapped(_GONE.format(plural(self.gone, "compilation")), "  ")
        elif not self.findings:
            lines[0] += "; nothing was traced again"
        for i, finding in enumerate(self.findings):
            block = [f"  {finding.title()}", *_reason_lines(finding, self.verbose)]
            rest = len(self.findings) - i - 1
            room = _LINES - len(lines) - (rest > 0)
            if not self.verbose and len(block) > room:
                more = plural(len(self.findings) - i, "more reason")
                lines.append(f"  and {more}: explain(..., verbose=True)")
                break
            lines += block
        return "\n".join(lines)


def _reason_lines(finding: Finding, verbose: bool = False) -> Iterator[str]:
    yield from wrapped(finding.says, "    ")
    yield from wrapped(f"Called: {show_calls(finding, verbose)}.", "    ")
    if verbose:
        yield from (f"      {change}" for change in finding.changes)
    for number, part in enumerate(finding.parts or (finding,), 1):
        if finding.parts:
            yield from wrapped(f"({number}) {part.says}", "    ")
        text = f"Fix: {part.fix}"
        text += f" Saves {part.gain}." if part.gain else ""
        text += f" {part.note}" if part.note and verbose else ""
        yield from wrapped(text, "      " if finding.parts else "    ")


def show_calls(finding: Finding, verbose: bool = False) -> str:
    """Functions and lines, with the number of compilations above one."""
    calls = finding.calls.items()
    shown = [f"{call} ({n} times)" if n > 1 else call for call, n in calls]
    most = len(shown) if verbose else 3
    more = f"; and {len(shown) - most} more" if len(shown) > most else ""
    return "; ".join(shown[:most]) + more


def describe_from_now_on(event: Event) -> None:
    """An observer that does nothing: what is observed is described as it happens."""


def explain_event(event: Event) -> str:
    """Why an event that has just begun is there, as plain text."""
    if is_first(event):
        arguments = (f"{leaf.path}: {leaf}" for leaf in arguments_of(event))
        shown = listed(arguments, 8) or "no arguments"
        return f"  first call, at {show_place(line_of(event))}, with {shown}"
    if event.gone:
        line = show_place(line_of(event))
        return f"  again, at {line}; the arguments of the earlier calls are gone"
    finding = finding_of(Diagnosis(group([event])[0]))
    return "\n".join([f"  {finding.kind()}", *_reason_lines(finding)])


def explain(f: Any = None, /, *, verbose: bool = False) -> Explanation:
    """Why a function was traced or compiled again.

    **Arguments:**

    - `f`: a function or method wrapped by `eqx_fastjit.filter_jit`. Without it, all
        jitted functions of the process are explained together.
    - `verbose`: show every cause and every leaf. The text has at most twenty lines
        otherwise.

    **Returns:**

    An `Explanation`, which prints as text: each cause with its count and seconds, the
    leaves that differ, the lines of the calls, and what to do about it. If one line
    made several functions (a lambda in a loop), it covers all of them. It covers the
    last 4,096 traces and compilations of the process.

    Static arguments are not kept alive for this. If one was changed in place, or its
    trace is dropped, the text says how many compilations it cannot explain. From then
    on they are described as they happen: repeat the calls, and explain again.

    Raises `TypeError` if `f` was not wrapped by `eqx_fastjit`.
    """
    info = None if f is None else jitted_function(f).info
    name = "all jitted functions" if info is None else title_of(info)
    events = history(info)
    add_programs(events)
    known = [e for e in events if not e.gone]
    if len(known) < len(events) and not is_watched(describe_from_now_on):
        watch(describe_from_now_on)
    groups = [g for g in group(known) if not g.is_first]
    return Explanation(
        name,
        sum(e.traced and not e.failed for e in events),
        sum(e.compile > 0 for e in events),
        sum(e.seconds for e in events),
        tuple(finding_of(Diagnosis(g)) for g in groups),
        len(events) - len(known),
        verbose,
    )
