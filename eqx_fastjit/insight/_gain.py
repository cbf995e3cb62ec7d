"""The report of `eqx-fastjit gain`: how much faster a program is."""

import dataclasses
import importlib
import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from eqx_fastjit._units import plural, show_seconds

from ._table import Report, Table


# Numbers of pairs of runs after which their ratios are tested.
LOOKS = (3, 5, 8, 12, 18, 27)
# The probability that any of these tests finds a difference where there is none.
_ERROR = 0.05
# If the ratio is within this of 1, the two take the same time.
_ALIKE = 0.02

FASTER, SLOWER, ALIKE, UNKNOWN = "faster", "slower", "alike", "unknown"


def looks_at(pairs: int) -> int:
    """The number of the test after so many pairs, from 1."""
    return sum(n < pairs for n in LOOKS) + 1


class Interval(NamedTuple):
    """Ours over Equinox's: the geometric mean of paired ratios, and its interval."""

    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Whether ours is `FASTER`, `SLOWER` or `ALIKE`; `UNKNOWN` if inconclusive."""
        if self.high < 1:
            return FASTER
        if self.low > 1:
            return SLOWER
        alike = self.low >= 1 - _ALIKE and self.high <= 1 + _ALIKE
        return ALIKE if alike else UNKNOWN


def interval(ratios: Sequence[float], look: int) -> Interval:
    """The confidence interval of the ratio.

    Student's t on the logarithms of the ratios, whose mean is close to normal. Repeated
    tests would find a difference by chance sooner or later, so each is allowed less
    error than the one before: 5% in total. `look` is the number of this test, from 1.
    """
    logs = [math.log(x) for x in ratios]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return Interval(math.exp(mean), 0.0, math.inf)
    stats: Any = importlib.import_module("scipy.stats")  # which JAX needs too
    error = _ERROR * 6 / (math.pi * look) ** 2
    quantile = float(stats.t.ppf(1 - error / 2, len(logs) - 1))
    half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


@dataclasses.dataclass(frozen=True)
class FunctionGain:
    """A jitted function of the program. Seconds are of one call."""

    name: str
    # Its line, if it is a Python function.
    place: str
    file: str | None
    line: int | None
    calls: int
    # `equinox`, `ours`, `floor`, `device`, and `..._overhead` of the first three.
    costs: dict[str, float] | None
    # Why there are none.
    reason: str

    def spent(self, cost: str) -> float:
        """Seconds of one of `costs` in all of its calls."""
        return self.calls * (self.costs or {}).get(cost, 0.0)

    @property
    def saved(self) -> float:
        """Seconds of overhead saved in all of its calls."""
        return self.spent("equinox_overhead") - self.spent("ours_overhead")


@dataclasses.dataclass(frozen=True)
class Gain(Report):
    """What `eqx-fastjit gain` found. Times are in seconds."""

    program: str
    # Wall times of whole processes; those of the same number ran one after the other.
    equinox: tuple[float, ...]
    ours: tuple[float, ...]
    ratio: Interval
    functions: tuple[FunctionGain, ...]
    # To trace, lower and compile, in one run.
    compiling: float
    engine: str
    notes: tuple[str, ...] = ()

    @property
    def wall(self) -> float:
        """Median wall time under Equinox."""
        return statistics.median(self.equinox)

    def parts(self, whose: str = "equinox") -> dict[str, float]:
        """Where the wall time under `whose` goes: estimates that add up to it."""
        parts = {
            "compiling": self.compiling,
            "device": sum(f.spent("device") for f in self.functions),
            "overhead": sum(f.spent(f"{whose}_overhead") for f in self.functions),
        }
        rest = statistics.median(getattr(self, whose)) - sum(parts.values())
        return {**parts, "rest": max(rest, 0.0)}

    def title(self) -> str:
        """The result in one line."""
        return f"{self.program}: {self.verdict()}"

    def verdict(self) -> str:
        """Whether the program gains, as far as is known."""
        if len(self.ours) < 2:
            return "inconclusive: one pair of runs is not enough"
        (ratio, low, high), verdict = self.ratio, self.ratio.verdict
        verdicts = {
            ALIKE: f"no difference of more than {_ALIKE:.0%}",
            UNKNOWN: "inconclusive",
        }
        return (
            f"{verdicts.get(verdict, verdict)}: the wall time is {ratio:.3f} "
            f"times that under equinox.filter_jit (95% interval {low:.3f} to "
            f"{high:.3f}; {len(self.ours)} pairs of runs)"
        )

    def tables(self) -> list[Table]:
        """The wall times, the functions, and where the time goes."""
        return [self._walls(), self._functions(), self._parts()]

    def _walls(self) -> Table:
        walls = {"equinox.filter_jit": self.equinox, "eqx_fastjit": self.ours}
        rows: list[Sequence[Any]] = []
        for name, times in walls.items():
            spread = [statistics.median(times), min(times), max(times)]
            rows.append((name, *map(show_seconds, spread)))
        if len(self.ours) > 1:
            figures = [f"{x:.3f}" for x in self.ratio]
            rows.append(("eqx_fastjit/equinox.filter_jit", *figures))
        notes = (
            "Times are median, minimum and maximum over fresh processes, run in "
            "alternation. The ratio is the geometric mean over "
            f"{plural(len(self.ours), 'pair')} of runs, with its 95% confidence "
            "interval (Student's t on the logarithms, corrected for repeated looks).",
        )
        return Table("The whole program", ("", "time", "from", "to"), rows, notes)

    def _functions(self) -> Table:
        header = (
            *("function", "calls", "equinox", "ours", "floor", "device"),
            *("overhead", "share", "saved", ""),
        )
        rows: list[Sequence[Any]] = []
        for f in self.functions:
            name = f"{f.name} ({f.place})" if f.place else f.name
            if f.costs is None:
                rows.append((name, f.calls, *["-"] * 7, f.reason))
                continue
            costs = ("equinox", "ours", "floor", "device", "equinox_overhead")
            shown = [show_seconds(f.costs[x]) for x in costs]
            share = f"{f.spent('equinox_overhead') / self.wall:.2%}"
            rows.append((name, f.calls, *shown, share, show_seconds(f.saved), ""))
        if sum(f.costs is not None for f in self.functions) > 1:
            overhead = sum(f.spent("equinox_overhead") for f in self.functions)
            saved = sum(f.saved for f in self.functions)
            calls = sum(f.calls for f in self.functions)
            share = f"{overhead / self.wall:.2%}"
            rows.append(("all", calls, *["-"] * 5, share, show_seconds(saved), ""))
        if not any(f.costs is None for f in self.functions):
            header, rows = header[:-1], [row[:-1] for row in rows]
        notes = (
            "equinox, ours: until a call returns, under equinox.filter_jit (which "
            "always blocks) and under eqx_fastjit. floor: the same for jax.jit of the "
            "arrays in a flat list. device: the compiled program alone, run by jaxlib. "
            "overhead: what the host does in a call under equinox.filter_jit. Timed "
            "after the program has ended, with its own arguments, in interleaved "
            "rounds, without donation.",
            "share: the overhead of all calls, relative to the program's wall time "
            "under equinox.filter_jit. saved: how much of this overhead eqx_fastjit "
            "saves in one run. A program that does other work while the device is busy "
            "saves more, which only the wall times show.",
        )
        return Table("Jitted functions", header, rows, notes)

    def _parts(self) -> Table:
        words = {
            "compiling": "tracing, lowering and compiling; the same under both",
            "device": "the device, in calls of the functions above",
            "overhead": "the host, in these calls",
            "rest": "imports, Python, operations outside of jit, and everything else",
        }
        before, after = self.parts(), self.parts("ours")
        rows = [
            (
                *(name, show_seconds(before[name]), f"{before[name] / self.wall:.1%}"),
                *(show_seconds(after[name]), words[name]),
            )
            for name in before
        ]
        header = ("", "equinox", "share", "ours", "")
        return Table("Where the time goes (estimated)", header, rows, self.notes)

    def as_json(self) -> dict[str, Any]:
        """The same for programs. Times are in seconds."""
        return {
            "schema": 1,
            "program": self.program,
            "engine": self.engine,
            "verdict": self.ratio.verdict,
            "wall": {
                "equinox": list(self.equinox),
                "ours": list(self.ours),
                "ratio": self.ratio._asdict() if len(self.ours) > 1 else None,
            },
            "parts": {w: self.parts(w) for w in ("equinox", "ours")},
            "functions": [
                {
                    "name": f.name,
                    "file": f.file,
                    "line": f.line,
                    "calls": f.calls,
                    "seconds": f.costs,
                    "overhead_share": f.spent("equinox_overhead") / self.wall,
                    "saved": f.saved,
                    "not_timed": f.reason or None,
                }
                for f in self.functions
            ],
            "notes": list(self.notes),
        }
