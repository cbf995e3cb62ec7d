"""What the doctor found, as data."""

import dataclasses
from typing import Any

from ._sites import Line


SCHEMA = 1

# Every kind of finding, and what it is.
KINDS = {
    "static-churn": "an argument that is static takes a new value again and again",
    "shape-churn": "an array argument takes a new shape again and again",
    "weak-type": "an array is weakly typed in one call and not in another",
    "dtype-churn": "an array argument changes its dtype",
    "structure-churn": "an argument changes its pytree structure again and again",
    "sharding-churn": "an array argument is placed elsewhere again and again",
    "config-churn": "JAX's configuration changes between calls",
    "fresh-function": "one line makes a new function each time, and each is traced",
    "unrolled-loop": "a Python loop was unrolled into many equations",
    "inlined-function": "a function was inlined at many places",
    "large-constant": "a large array became a part of the compiled program",
    "stale-global": "a value that was read when tracing has changed since",
    "numerics": "the jitted result differs from the eager one (with --numerics)",
    "blocking": "Python waited for the device in a loop",
    "outside-jit": "an operation outside of jit is compiled again and again",
    "slow-first-call": "the first call took long to trace, lower or compile",
}


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
    leaf: str
    # Lost, as far as that can be told; `None` if not at all.
    seconds: float | None
    count: int
    message: str
    fix: str


@dataclasses.dataclass(frozen=True)
class FunctionRow:
    """What became of the functions that one line of source made."""

    function: str
    file: str | None
    line: int | None
    # "filter_jit", "jax.jit", or "jax" for operations outside of any such function.
    jit: str
    # Function objects: more than one if it was made anew.
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
class Bar:
    """One compilation on the timeline. Times are in seconds."""

    function: str
    jit: str
    # Since the program began.
    start: float
    trace: float
    lower: float
    compile: float
    first_run: float
    cause: str
    site: Line | None

    @property
    def seconds(self) -> float:
        """From beginning to end."""
        return self.trace + self.lower + self.compile + self.first_run


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything that the doctor has to say."""

    program: str
    exit_code: int
    # That the program ran.
    seconds: float
    findings: tuple[Finding, ...]
    functions: tuple[FunctionRow, ...]
    bars: tuple[Bar, ...]
    # What could not be seen.
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """As it is written with `--json`."""
        return {
            "schema": SCHEMA,
            "program": self.program,
            "exit_code": self.exit_code,
            "seconds": self.seconds,
            "findings": [dataclasses.asdict(x) for x in self.findings],
            "functions": [
                {**dataclasses.asdict(x), "calls": dict(x.calls)}
                for x in self.functions
            ],
            "notes": list(self.notes),
        }


def headline(report: Report) -> str:
    """The report in a line."""
    n = len(report.findings)
    if n == 0:
        return "nothing found"
    return f"{n} finding{'s' * (n != 1)}"
