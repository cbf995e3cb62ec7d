"""What was compiled: jaxpr and HLO as texts, and XLA's estimates of cost and memory."""

import re
from collections.abc import Callable
from typing import Any

from ._report import Program


# Characters kept of each text: its beginning and its end.
_MAX_TEXT = 100_000
# Equations from which a jaxpr takes too long to be printed.
_MAX_EQUATIONS = 50_000


# XLA's tables of files and stack frames: longer than the program, for nobody to read.
_TABLES = re.compile(
    r"^(FileNames|FunctionNames|FileLocations|StackFrames)\n(?:.+\n)*\n", re.MULTILINE
)


def program_of(traced: Any) -> Program:
    """Lower and compile a `jax.stages.Traced` again, for its texts and estimates."""
    lowered = traced.lower()
    compiled = lowered.compile()
    cost = _attempt(compiled.cost_analysis) or {}
    if isinstance(cost, list):  # of older JAX, one for each device
        cost = cost[0] if cost else {}
    memory = _attempt(compiled.memory_analysis)
    closed = traced.jaxpr
    n = len(closed.jaxpr.eqns)
    jaxpr = _attempt(lambda: str(closed)) if n <= _MAX_EQUATIONS else f"{n} equations"
    return Program(
        jaxpr=_cut(jaxpr or ""),
        stablehlo=_cut(_attempt(lowered.as_text) or ""),
        hlo=_cut(_TABLES.sub("", _attempt(compiled.as_text) or "")),
        flops=_known(cost.get("flops")),
        bytes_accessed=_known(cost.get("bytes accessed")),
        argument_bytes=_known(getattr(memory, "argument_size_in_bytes", None)),
        result_bytes=_known(getattr(memory, "output_size_in_bytes", None)),
        temporary_bytes=_known(getattr(memory, "temp_size_in_bytes", None)),
        code_bytes=_known(getattr(memory, "generated_code_size_in_bytes", None)),
    )


def _attempt(get: Callable[[], Any]) -> Any:
    """What some backend does not tell is left out."""
    try:
        return get()
    except Exception:
        return None


def _known(x: Any) -> Any:
    # XLA gives -1 or nothing for what it does not know.
    return x if isinstance(x, int | float) and x >= 0 else None


def _cut(text: str) -> str:
    if len(text) <= _MAX_TEXT:
        return text
    half = _MAX_TEXT // 2
    left = len(text) - 2 * half
    return f"{text[:half]}\n... {left} characters ...\n{text[-half:]}"
