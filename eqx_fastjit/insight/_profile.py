"""Sampling profiles of warm calls: ours beside Equinox's beside `jax.jit`."""

# Of JAX's functions not all have types.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import dataclasses
import importlib
import os
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from eqx_fastjit._compat import CALL_FRAMES
from eqx_fastjit._files import check_writable

# Under `install()`, `eqx.filter_jit` is ours.
from eqx_fastjit._install import equinox_filter_jit
from eqx_fastjit._jit import filter_jit
from eqx_fastjit._progress import Progress
from eqx_fastjit._units import show_seconds

from ._breakdown import Breakdown, breakdown
from ._table import Report, Table
from ._target import Target, target


# More than our own code generation waits for.
_WARM_CALLS = 40
# Seconds between samples. A sample of a deep stack takes 0.1 ms and more: at shorter
# intervals there is time for little else.
_INTERVAL = 1e-3
STAGES: tuple[str, ...] = (
    "bind",
    "partition",
    "flatten",
    "state check",
    "lookup",
    "execute",
    "unflatten",
    "wait",
    "other Python",
    "inside C++",
)

# What the time in a Python function, and in those that it calls, is spent on: the
# beginning of its file's last part, its name (any if empty), the stage.
_RULES = (
    *CALL_FRAMES,
    ("<generated_flatten", "", "flatten"),
    ("<generated_unflatten", "", "unflatten"),
    ("_partition.py", "walk", "partition"),
    ("_partition.py", "build", "unflatten"),
    ("_function.py", "find", "lookup"),
    ("_binding.py", "", "bind"),
)
# Functions whose own time is spent in jaxlib: nothing else of note is in them.
_CALL_JAXLIB = (
    ("_function.py", "call"),
    ("_jit.py", "_call"),
    ("_profile.py", "_run_calls"),
)


@dataclasses.dataclass(frozen=True)
class Contender:
    """One of the three ways to jit the function."""

    name: str
    # Seconds a call while being profiled.
    seconds: float
    # Of the samples: by stage.
    shares: dict[str, float]
    text: str
    html: str
    # Timed without a profiler.
    breakdown: Breakdown


@dataclasses.dataclass(frozen=True)
class Profile(Report):
    """What `profile` found."""

    name: str
    calls: int
    contenders: tuple[Contender, ...]

    def title(self) -> str:
        """What was profiled, in a line."""
        return f"{self.name}: {self.calls} warm calls each, sampled and timed"

    def tables(self) -> list[Table]:
        """The shares of all contenders in one table."""
        header = ["part"]
        for c in self.contenders:
            header += [f"{c.name}: sampled", "timed"]
        rows: list[Sequence[Any]] = []
        for stage in STAGES:
            row = [stage]
            for c in self.contenders:
                timed = [p for p in c.breakdown.steady if p.name == stage]
                row.append(f"{c.shares[stage]:.0%}")
                row.append(show_seconds(timed[0].seconds) if timed else "-")
            rows.append(row)
        row = ["a call"]
        for c in self.contenders:
            row += [show_seconds(c.seconds), show_seconds(c.breakdown.dispatch)]
        rows.append(row)
        notes = (
            "Sampled: shares of the samples, under the profiler, which slows Python "
            "down. Timed: without it, by `breakdown`; lookup and wait are differences.",
            "A sampling profiler sees Python functions only. jax.jit and eqx_fastjit "
            "flatten, look up, execute and unflatten in compiled code, and Equinox "
            'calls jax.jit and blocks there. All of that is "inside C++" here; the '
            "timed columns have its parts.",
        )
        return [Table("Where the time goes", tuple(header), rows, notes)]

    def full_text(self) -> str:
        """The table, and below it each profile."""
        parts = [str(self)]
        parts += [f"--- {c.name} ---\n{c.text}" for c in self.contenders]
        return "\n\n".join(parts)

    def html_body(self) -> str:
        """The table, and each profile to look into."""
        frames = [
            f"<h3>{escape(c.name)}</h3>"
            f'<iframe title="{escape(c.name)}" srcdoc="{escape(c.html)}"></iframe>'
            for c in self.contenders
        ]
        return "\n".join([self._repr_html_(), *frames])


# Pyinstrument's page asks for fonts from the net: a page of ours asks for nothing.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; font-src data:"
)


def html_page(profiles: Sequence[Profile]) -> str:
    """A page that needs nothing else."""
    title = ", ".join(escape(p.name) for p in profiles)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Profile: {title}</title>"
        "<style>:root {color-scheme: light dark} "
        "body {font-family: sans-serif; margin: clamp(1em, 4vw, 2em)} "
        "iframe {width: 100%; height: 30em; border: 1px solid #888}</style>"
        f"</head><body>{''.join(p.html_body() for p in profiles)}</body></html>"
    )


def profile(
    f: Any,
    *args: Any,
    n: int = 2000,
    html: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> Profile:
    """Profile warm calls under `filter_jit`, `equinox.filter_jit` and `jax.jit`.

    For `jax.jit`, the statics are removed. This needs pyinstrument:
    `pip install "eqx_fastjit[profile]"`. Functions that donate arguments are profiled
    without donation.

    **Arguments:**

    - `f`: a function, jitted in any way or not.
    - `*args`, `**kwargs`: the arguments of the call.
    - `n`: how many calls of each.
    - `html`: a file for a self-contained page; checked before anything runs.

    **Returns:**

    A `Profile`: `str(profile)` is the table, `full_text()` has each profile too. Raises
    `ValueError` for less than one call, `OSError` for a file that cannot be written,
    and `ImportError` without pyinstrument.
    """
    importlib.import_module("pyinstrument")  # say now that it is missing
    if n < 1:
        raise ValueError(f"n={n}: expected at least 1")
    if html is not None:
        check_writable(html)
    it = target(f)
    with Progress(f"profile of {it.name}") as progress:
        found = tuple(
            _contender(name, jitted, call_args, call_kwargs, n, progress)
            for name, jitted, call_args, call_kwargs in _contenders(it, args, kwargs)
        )
    out = Profile(it.name, n, found)
    if html is not None:
        Path(html).write_text(html_page([out]), encoding="utf-8")
    return out


def _contenders(
    it: Target, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]]:
    args, kwargs = it.complete(args, kwargs)
    fun = it.fun
    arrays, statics = eqx.partition((fun, args, kwargs), eqx.is_array)

    def without_statics(arrays: Any) -> Any:
        fun, args, kwargs = eqx.combine(arrays, statics)
        return eqx.filter(fun(*args, **kwargs), eqx.is_array)

    return [
        ("eqx_fastjit", filter_jit(fun), args, kwargs),
        ("equinox", equinox_filter_jit(fun), args, kwargs),
        ("jax.jit", jax.jit(without_statics), (arrays,), {}),
    ]


def _contender(
    name: str,
    jitted: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    n: int,
    progress: Progress,
) -> Contender:
    from pyinstrument import Profiler
    from pyinstrument.renderers import ConsoleRenderer, HTMLRenderer

    progress.stage(f"{name}: compiling")
    for _ in range(_WARM_CALLS):
        jax.block_until_ready(jitted(*args, **kwargs))
    start = time.perf_counter()
    jax.block_until_ready(jitted(*args, **kwargs))
    progress.stage(f"{name}: {n} calls", n * (time.perf_counter() - start))
    profiler = Profiler(interval=_INTERVAL, async_mode="disabled")
    profiler.start()
    try:
        out = _run_calls(jitted, args, kwargs, n)
    finally:
        session = profiler.stop()
    jax.block_until_ready(out)
    progress.stage(f"{name}: its parts")
    root = session.root_frame(trim_stem=False)
    shares = dict.fromkeys(STAGES, 0.0) if root is None else stage_shares(root)
    return Contender(
        name,
        session.duration / n,
        shares,
        profiler.output(ConsoleRenderer(show_all=True, color=False)),
        profiler.output(HTMLRenderer()),
        breakdown(jitted, *args, **kwargs),
    )


def _run_calls(
    jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any], n: int
) -> Any:
    out = None
    for _ in range(n):
        out = jitted(*args, **kwargs)
    return out


def stage_shares(root: Any) -> dict[str, float]:
    """The share of each stage in a profile.

    The innermost function that a rule knows decides. The own time of what calls into
    jaxlib is time inside C++.
    """
    seconds = dict.fromkeys(STAGES, 0.0)

    def visit(frame: Any, stage: str | None) -> None:
        stage = _stage(frame) or stage
        own = frame.time - sum(child.time for child in frame.children)
        if own > 0:
            seconds[stage or _default(frame)] += own
        for child in frame.children:
            visit(child, stage)

    visit(root, None)
    total = sum(seconds.values()) or 1.0
    return {name: x / total for name, x in seconds.items()}


def _names(frame: Any) -> tuple[str, str]:
    """The last part of a frame's file, and its function without the class."""
    file = os.path.basename(frame.file_path or "")
    return file, (frame.function or "").rpartition(".")[2]


def _stage(frame: Any) -> str | None:
    file, function = _names(frame)
    if function == "isinstance" and frame.parent is not None:
        # Equinox asks whether it is inside of a trace.
        return "state check" if _names(frame.parent) == ("_jit.py", "_call") else None
    for start, name, stage in _RULES:
        if file.startswith(start) and name in ("", function):
            return stage
    return None


def _default(frame: Any) -> str:
    """What the own time of a function is spent on that no rule knows."""
    if (frame.function or "") == "[self]" and frame.parent is not None:
        frame = frame.parent
    file, function = _names(frame)
    for start, name in _CALL_JAXLIB:
        if file.startswith(start) and name in ("", function):
            return "inside C++"
    return "other Python"
