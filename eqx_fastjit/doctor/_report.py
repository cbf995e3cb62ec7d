"""What the doctor found, as data."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from eqx_fastjit._units import plural, show_seconds


_T = TypeVar("_T")

SCHEMA = 1
_STAGES = ("trace", "lower", "compile", "first_run")

# What would help where nothing is wrong, and what it is.
HINTS = {
    "persistent-cache": "a second run would not have to compile",
    "export": "a second run would not have to trace",
    "scan-layers": "identical layers are compiled one by one",
    "ragged-batch": "a smaller last batch is compiled separately",
    "eager-operations": "JAX is called outside of any jitted function",
}

# Every kind of finding, and what it is.
KINDS = {
    "static-churn": "a static argument keeps changing its value",
    "shape-churn": "an array argument keeps changing its shape",
    "weak-type": "an array is weakly typed in some calls only",
    "dtype-churn": "an array argument changes its dtype",
    "structure-churn": "an argument keeps changing its pytree structure",
    "sharding-churn": "an array argument keeps changing its device or sharding",
    "config-churn": "JAX's configuration changes between calls",
    "fresh-function": "one line creates a new function each time, and each is traced",
    "unrolled-loop": "a Python loop was unrolled into many equations",
    "inlined-function": "a function was inlined in many places",
    "large-constant": "a large array became a constant of the compiled program",
    "stale-global": "a value that was read while tracing has changed",
    "numerics": "the jitted result differs from the eager one (with --numerics)",
    "blocking": "a loop blocks on the device in each iteration",
    "outside-jit": "an operation outside of jit keeps recompiling",
    "slow-first-call": "the first call takes long to trace, lower or compile",
}


def at(place: Any) -> dict[str, Any]:
    """The fields `file` and `line` of what is at a place, if that is known."""
    return {"file": place and place.file, "line": place and place.line}


def stages(traces: Iterable[Any]) -> dict[str, Any]:
    """The fields with the seconds of each stage, which are those of some traces."""
    traces = list(traces)
    return {name: sum(getattr(t, name) for t in traces) for name in _STAGES}


def grouped(items: Iterable[_T], key: Callable[[_T], Any]) -> dict[Any, list[_T]]:
    """The items by key, which are in the order of the first of each."""
    groups: dict[Any, list[_T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and what to do about it."""

    kind: str
    # "high", "medium" or "low".
    severity: str
    function: str
    # The line where something can be done about it.
    file: str | None
    line: int | None
    # The path of the leaf at fault, as the user would write it; may be empty.
    leaf: str = ""
    # Lost, as far as that can be told; `None` if not at all.
    seconds: float | None = None
    count: int = 1
    message: str = ""
    fix: str = ""


@dataclasses.dataclass(frozen=True)
class Hint:
    """What would help, although nothing is wrong."""

    kind: str
    function: str
    file: str | None
    line: int | None
    # That could be saved, by estimate: for "persistent-cache" in the next run.
    seconds: float
    message: str
    fix: str


@dataclasses.dataclass(frozen=True)
class LineTime:
    """Seconds spent at a line of the program, or in what it called."""

    file: str
    line: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class TimePart:
    """A part of the run."""

    name: str
    label: str
    seconds: float
    # Where most of it went, if that can be told.
    lines: tuple[LineTime, ...]


@dataclasses.dataclass(frozen=True)
class TimeSpent:
    """Where the time of a run went: parts that add up to it, the largest first."""

    seconds: float
    parts: tuple[TimePart, ...]


@dataclasses.dataclass(frozen=True)
class FunctionRow:
    """The functions that one line of source created."""

    function: str
    file: str | None
    line: int | None
    # "filter_jit", "jax.jit", or "jax" for operations outside of any such function.
    jit: str
    # Function objects: more than one if the line ran more than once.
    objects: int
    traces: int
    compiles: int
    # Seconds altogether, functions inside left out; and where they went.
    seconds: float
    trace: float
    lower: float
    compile: float
    first_run: float
    # How often it was traced or compiled for which reason.
    causes: dict[str, int]
    # The lines of the program that led to it.
    calls: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Program:
    """What was compiled; `None` where JAX or XLA does not tell."""

    # Texts, cut where they are very long.
    jaxpr: str
    stablehlo: str
    hlo: str
    # XLA's estimates for one run: floating-point operations and bytes of memory that
    # are read and written; the bytes that arguments, results and the rest take.
    flops: float | None
    bytes_accessed: float | None
    argument_bytes: int | None
    result_bytes: int | None
    temporary_bytes: int | None
    code_bytes: int | None


@dataclasses.dataclass(frozen=True)
class Change:
    """A leaf that differs from the nearest earlier call."""

    path: str
    what: str
    old: str
    new: str


@dataclasses.dataclass(frozen=True)
class Compilation:
    """One compilation, with everything that is known about it. Times are in seconds."""

    number: int
    function: str
    jit: str
    # Since the program began.
    start: float
    trace: float
    lower: float
    compile: float
    first_run: float
    cause: str
    # The line of the program that led to it, and where the function was defined.
    site: str = ""
    file: str | None = None
    line: int | None = None
    thread: int = 0
    # Whether JAX's persistent cache had it; whether it is a part of another one.
    cached: bool = False
    inside: bool = False
    # From the nearest earlier call, which was made at `earlier`.
    changes: tuple[Change, ...] = ()
    earlier: str = ""
    # The arguments, in a line; bytes of the arrays among them.
    signature: str = ""
    argument_bytes: int | None = None
    equations: int | None = None
    # With `--programs`.
    program: Program | None = None

    @property
    def seconds(self) -> float:
        """From beginning to end."""
        return self.trace + self.lower + self.compile + self.first_run

    def stages(self) -> Iterator[tuple[str, float, float]]:
        """Each that took some time: its name, when it began, its seconds."""
        start = self.start
        for name in _STAGES:
            if (seconds := getattr(self, name)) > 0:
                yield name, start, seconds
                start += seconds


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything that the doctor has to say."""

    program: str
    # `None` of a program that is still running.
    exit_code: int | None
    # That the program ran.
    seconds: float
    findings: tuple[Finding, ...]
    functions: tuple[FunctionRow, ...]
    compilations: tuple[Compilation, ...]
    # What could not be seen.
    notes: tuple[str, ...]
    hints: tuple[Hint, ...] = ()
    time: TimeSpent = TimeSpent(0.0, ())

    def as_json(self) -> dict[str, Any]:
        """As it is written with `--json`."""
        data = dataclasses.asdict(self)
        for row in data["functions"]:
            row["calls"] = dict(row["calls"])
        first = ("program", "exit_code", "seconds", "findings", "hints", "time")
        begin = {name: data.pop(name) for name in first}
        return {"schema": SCHEMA, **begin, **data, "notes": list(self.notes)}


# Share of a run, and seconds, from which compiling is worth a word in the headline.
_COMPILING = 0.25, 5.0


def compiling(report: Report) -> float:
    """Seconds spent on compiling, if they are much of the run; else 0."""
    names = ("compile", "trace", "lower")
    seconds = sum(part.seconds for part in report.time.parts if part.name in names)
    share, least = _COMPILING
    return seconds if seconds >= max(share * report.seconds, least) else 0.0


def headline(report: Report) -> str:
    """The report in a line."""
    found = {"finding": len(report.findings), "hint": len(report.hints)}
    words = [plural(n, what) for what, n in found.items() if n]
    if not report.findings and (seconds := compiling(report)):
        cost = f"{show_seconds(seconds)} of {show_seconds(report.seconds)}"
        words.insert(0, f"nothing wrong, but {cost} were spent compiling")
    return ", ".join(words) or "nothing found"


def is_good(report: Report) -> bool:
    """Whether there is nothing to be done."""
    return not (report.findings or report.hints or compiling(report))
