"""What `inspect_jaxpr` reports, and how it is shown."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from eqx_fastjit._units import show_bytes, show_seconds

from ._scan import Seconds
from ._table import Report, show_type, Table


# Rows of a table in the text of a report.
_ROWS = 12


@dataclasses.dataclass(frozen=True)
class LineCount:
    """Equations that come from one line of the user's program."""

    file: str
    line: int
    function: str
    equations: int
    # The most frequent ones, with their number.
    primitives: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class UnrolledLoop:
    """An unrolled Python loop, whose iterations follow one another in the trace."""

    # Where the loop is.
    file: str
    line: int
    function: str
    # The largest trip count of its occurrences.
    iterations: int
    # How often the loop occurs in the trace: more than once inside an outer loop, or
    # if it has a forward and a backward pass.
    occurrences: int
    # In all iterations of all occurrences.
    equations: int
    # An estimate of the equations that a `scan` would have: those of one iteration, and
    # the `scan` itself.
    scan_equations: int
    # Whether all iterations have the same shapes, which a `scan` requires.
    uniform: bool
    # Lowering and compiling one occurrence, both ways. Only with `measure=True`.
    seconds: Seconds | None = None
    # Why it was not measured, if it should have been.
    not_measured: str = ""


@dataclasses.dataclass(frozen=True)
class Inlined:
    """An inlined function, whose equations are in the trace once for each call."""

    name: str
    file: str
    line: int
    # "jit", "custom_jvp_call", ...; "python" for a plain function.
    kind: str
    # For a plain function a lower bound, derived from the stacks.
    calls: int
    # Different places that call it.
    call_sites: int
    # In all calls together.
    equations: int


@dataclasses.dataclass(frozen=True)
class Constant:
    """An array that the function captured: a constant rather than an argument."""

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    # Where it is first used.
    file: str
    line: int
    function: str


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An argument, a result, or an intermediate value."""

    # Path, or primitive.
    name: str
    type: str
    bytes: int
    # For an intermediate value, the line that creates it.
    where: str = ""


@dataclasses.dataclass(frozen=True)
class Memory:
    """XLA's estimate for one run, in bytes, and the largest buffers in the trace."""

    # `None` where XLA gives no estimate.
    arguments: int | None
    results: int | None
    temporaries: int | None
    # Results that reuse the memory of donated arguments.
    aliased: int | None
    code: int | None
    largest_arguments: tuple[Buffer, ...]
    largest_results: tuple[Buffer, ...]
    # As traced. XLA may fuse some of them away.
    largest_intermediates: tuple[Buffer, ...]


@dataclasses.dataclass(frozen=True)
class Donation:
    """An argument whose memory a result could reuse."""

    argument: str
    result: str
    type: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class Residuals:
    """What the forward pass stores for the backward pass."""

    number: int
    bytes: int
    largest: tuple[Buffer, ...]
    # The share of XLA's temporary memory, if that is known, and is not smaller.
    share: float | None
    # Equations of the forward pass: the most that `jax.checkpoint` would run twice.
    forward_equations: int
    # Whether `jax.checkpoint` is worth trying: at least 1 MiB, and a quarter of the
    # temporary memory.
    checkpoint: bool


@dataclasses.dataclass(frozen=True)
class JaxprReport(Report):
    """The result of `inspect_jaxpr`."""

    name: str
    equations: int
    trace_seconds: float
    # `None` if it was not compiled.
    lower_seconds: float | None
    compile_seconds: float | None
    lines: tuple[LineCount, ...]
    loops: tuple[UnrolledLoop, ...]
    inlined: tuple[Inlined, ...]
    constants: tuple[Constant, ...]
    memory: Memory
    donations: tuple[Donation, ...]
    residuals: Residuals | None

    def title(self) -> str:
        """The most important numbers, in a line."""
        parts = [f"traced in {show_seconds(self.trace_seconds)}"]
        if self.lower_seconds is not None and self.compile_seconds is not None:
            parts.append(f"lowered in {show_seconds(self.lower_seconds)}")
            parts.append(f"compiled in {show_seconds(self.compile_seconds)}")
        return f"{self.name}: {self.equations} equations, {', '.join(parts)}"

    def tables(self) -> list[Table]:
        """The parts of the report."""
        return [
            self._lines_table(),
            self._loops_table(),
            self._inlined_table(),
            self._constants_table(),
            self._memory_table(),
            self._buffers_table(),
            self._advice_table(),
        ]

    def _lines_table(self) -> Table:
        rows: list[Sequence[Any]] = []
        for x in self.lines[:_ROWS]:
            primitives = ", ".join(f"{name} {n}" for name, n in x.primitives)
            rows.append((x.equations, f"{x.file}:{x.line}", x.function, primitives))
        header = ("equations", "line", "in", "most frequent")
        return Table("Equations by source line", header, rows, _more(self.lines))

    def _loops_table(self) -> Table:
        rows: list[Sequence[Any]] = []
        notes: list[str] = []
        for x in self.loops:
            counts = x.iterations, x.occurrences, x.equations
            scan = f"~{x.scan_equations}" if x.uniform else "shapes differ"
            seconds = ("", "") if x.seconds is None else map(show_seconds, x.seconds)
            rows.append((*counts, f"{x.file}:{x.line}", x.function, scan, *seconds))
            if x.not_measured:
                notes.append(f"line {x.line} was not measured: {x.not_measured}")
        header = ("iterations", "occurrences", "equations", "loop", "in", "with scan")
        header += ("compile unrolled", "compile scan")
        if any(x.seconds for x in self.loops):
            notes.append(
                "The compile times were measured for one occurrence of the loop by "
                "itself. With a scan, compiling the whole function should take less "
                "time by about the difference."
            )
        return Table("Unrolled Python loops", header, rows, tuple(notes))

    def _inlined_table(self) -> Table:
        rows: list[Sequence[Any]] = []
        for x in self.inlined[:_ROWS]:
            calls = f">={x.calls}" if x.kind == "python" else x.calls
            place = f"{x.file}:{x.line}"
            rows.append((calls, x.call_sites, x.equations, x.name, x.kind, place))
        header = ("calls", "call sites", "equations", "function", "kind", "defined at")
        return Table("Inlined functions", header, rows, _more(self.inlined))

    def _constants_table(self) -> Table:
        rows = [
            (show_bytes(x.bytes), show_type(x), f"{x.file}:{x.line}", x.function)
            for x in self.constants[:_ROWS]
        ]
        header = ("size", "type", "used at", "in")
        return Table("Captured constants", header, rows, _more(self.constants))

    def _memory_table(self) -> Table:
        m = self.memory
        figures = {
            "arguments": m.arguments,
            "results": m.results,
            "temporaries": m.temporaries,
            "donated arguments reused": m.aliased,
            "program": m.code,
        }
        rows = [(k, show_bytes(v)) for k, v in figures.items() if v is not None]
        none = "No estimate: the function was not compiled, or XLA provides none."
        notes = () if rows else (none,)
        return Table("Memory, estimated by XLA", ("what", "size"), rows, notes)

    def _buffers_table(self) -> Table:
        rows = [
            (show_bytes(b.bytes), kind, b.name, b.type, b.where)
            for kind in ("argument", "result", "intermediate")
            for b in getattr(self.memory, f"largest_{kind}s")
        ]
        notes = ("Intermediate values are as traced; XLA may fuse them away.",)
        header = ("size", "kind", "name", "type", "created at")
        return Table("Largest buffers", header, rows, notes)

    def _advice_table(self) -> Table:
        rows: list[Sequence[Any]] = []
        if self.donations:
            total = sum(d.bytes for d in self.donations)
            names = ", ".join(d.argument for d in self.donations[:6])
            names += ", ..." if len(self.donations) > 6 else ""
            saves = (
                f"{show_bytes(total)} of results could reuse the memory of {names}, if "
                "these are not used after the call: filter_jit(donate=...)"
            )
            rows.append(("donate", saves))
        if (r := self.residuals) is not None:
            share, temporaries = "", self.memory.temporaries
            if r.share is not None:
                share = f" ({r.share:.0%} of the temporaries)"
            elif temporaries is not None:
                share = f" ({show_bytes(temporaries)} of temporaries after it)"
            verdict = "is worth trying" if r.checkpoint else "would save little"
            saves = (
                f"Before fusion, {r.number} arrays of {show_bytes(r.bytes)}{share} are "
                f"kept for the backward pass. jax.checkpoint {verdict}: it would run "
                f"at most {r.forward_equations} equations twice"
            )
            rows.append(("checkpoint", saves))
            rows += [
                ("", f"kept: {show_bytes(b.bytes)} {b.type} by {b.name}, {b.where}")
                for b in r.largest
            ]
        return Table("What would save memory", ("how", "what it saves"), rows)


def _more(rows: tuple[Any, ...]) -> tuple[str, ...]:
    rest = len(rows) - _ROWS
    return (f"and {rest} more",) if rest > 0 else ()
