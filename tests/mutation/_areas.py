"""What is mutated, the tests that should notice, and how many mutants they should."""

from pathlib import Path
from typing import NamedTuple


ROOT = Path(__file__).parent.parent.parent


class Area(NamedTuple):
    """A part of the package."""

    name: str
    # Glob patterns of files, relative to the root.
    sources: tuple[str, ...]
    # Names of test files.
    tests: tuple[str, ...]
    # The share of mutants that tests should notice.
    goal: float
    # The share of time.
    weight: float

    def files(self, root: Path = ROOT) -> list[Path]:
        """The files, relative to the root."""
        found = {path for pattern in self.sources for path in root.glob(pattern)}
        return sorted(path.relative_to(root) for path in found)

    def test_files(self) -> list[str]:
        """The test files, as arguments for pytest."""
        return [f"tests/test_{name}.py" for name in self.tests]


_ENGINE = (
    *("corpus", "binding", "statics", "stages", "fixes", "engines", "contexts"),
    *("sharding", "lifetimes", "attacks", "attacks_2", "attacks_3", "attacks_3c"),
    *("attacks_4", "attacks_5", "attacks_6", "attacks_7", "attacks_8", "attacks_9c"),
    *("attacks_9p", "attacks_9t", "attacks_10", "attacks_10s", "attacks_11"),
    *("attacks_11c", "attacks_12", "attacks_13", "attacks_14"),
    *("static_containers", "static_sets", "no_python"),
    *("native_memory", "nodes", "static_modules", "memory", "crashes", "hostile"),
)

# Suffixes of the extension's sources.
C_SUFFIXES = (".c", ".h")

AREAS = (
    Area(
        "engine",
        tuple(
            f"eqx_fastjit/_{name}.py"
            for name in (
                *("base", "binding", "blocking", "callables", "engine", "errors"),
                *("function", "install", "jit", "keys", "logs", "nodes", "options"),
                *("partition", "parts", "signals", "specialization", "stages"),
                "static_keys",
            )
        ),
        _ENGINE,
        0.9,
        0.25,
    ),
    Area(
        "engine, compiled",
        ("eqx_fastjit/_native.c", "eqx_fastjit/_walk.h"),
        _ENGINE,
        0.9,
        0.35,
    ),
    Area(
        "insight",
        (
            "eqx_fastjit/insight/*.py",
            *(f"eqx_fastjit/_{name}.py" for name in ("record", "describe", "units")),
        ),
        (
            *("seconds", "insight_explain", "insight_captures", "insight_guard"),
            *("insight_jaxpr", "insight_advice", "insight_names", "insight_reasons"),
            *("insight_breakdown", "insight_numerics", "insight_profile"),
            *("insight_tables", "insight_trees", "insight_times", "insight_values"),
            *("insight_places", "insight_traces", "progress", "frozen", "lock_files"),
        ),
        0.8,
        0.15,
    ),
    Area(
        "doctor",
        ("eqx_fastjit/doctor/*.py",),
        (
            *("thresholds", "seconds", "doctor_time", "doctor_buckets", "doctor"),
            *("doctor_plain", "live_log", "lock", "doctor_signals", "frozen"),
            *("doctor_page", "doctor_intent", "doctor_findings", "doctor_churn"),
            *("doctor_blocked", "doctor_tables", "doctor_hints"),
            *("doctor_dtypes", "doctor_watch", "doctor_sites"),
            *("doctor_log", "lock_files", "doctor_markup"),
            *("attacks_12i", "attacks_13p"),
        ),
        0.8,
        0.15,
    ),
    Area(
        "cli",
        ("eqx_fastjit/cli/*.py",),
        (
            *("cli_scripts", "cli_programs", "reporter"),
            *("cli", "cli_run", "lock", "doctor", "export_command"),
            *("insight_profile", "frozen"),
        ),
        0.75,
        0.1,
    ),
)
