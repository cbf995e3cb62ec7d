"""`profile`: warm calls under three jits, timed and sampled."""

# Of JAX's functions not all have types.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import importlib
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from eqx_fastjit._files import check_writable

# Under `install()`, `eqx.filter_jit` is ours.
from eqx_fastjit._install import equinox_filter_jit
from eqx_fastjit._jit import filter_jit
from eqx_fastjit._progress import Progress
from eqx_fastjit._units import show_seconds
from eqx_fastjit.doctor._page_parts import html_document

from ._profile_tree import make_tree, Node, STYLE, tree_html, tree_text
from ._table import PAGE_STYLE, Report, Table
from ._target import target
from ._warm_call import Call, Part, PARTS, prepare, time_calls, WarmCall


_ROUNDS = 15
# To sample, unless somebody says how many calls: for so many seconds until they return,
# so many until they have finished, or so many calls.
_SECONDS, _LONGEST, _LEAST_CALLS = 0.5, 2.0, 20
# The CPU client lets 32 computations wait; after that, calls block.
_AT_ONCE = 30
# Seconds between samples. A sample of a deep stack takes 0.1 ms and more: at shorter
# intervals there is time for little else.
_INTERVAL = 1e-3
# Of the functions that were sampled, those with the most time of their own.
_FUNCTIONS = 12


@dataclasses.dataclass(frozen=True)
class Contender:
    """One of the three ways to jit the function."""

    name: str
    calls: int
    # Seconds a call while being profiled.
    seconds: float
    # What was sampled: Python functions, and compiled code as the parts split it.
    tree: Node
    # Timed without a profiler.
    warm: WarmCall


@dataclasses.dataclass(frozen=True)
class Profile(Report):
    """The result of `profile`."""

    name: str
    contenders: tuple[Contender, ...]

    def title(self) -> str:
        """What was measured, in a line."""
        calls = {c.calls for c in self.contenders}
        if len(calls) == 1:
            return f"{self.name}: {calls.pop():,} warm calls each, timed and sampled"
        each = ", ".join(f"{c.calls:,} under {c.name}" for c in self.contenders)
        return f"{self.name}: warm calls, timed and sampled: {each}"

    def tables(self) -> list[Table]:
        """The parts of a call, and the Python functions with the most time."""
        return [self._parts(), self._functions()]

    def _parts(self) -> Table:
        names = [c.name for c in self.contenders]
        steady = [{p.name: p for p in c.warm.parts} for c in self.contenders]
        rows: list[Sequence[Any]] = []
        for name, what in PARTS.items():
            if not any(name in parts for parts in steady):
                continue
            cells: list[str] = []
            for c, parts in zip(self.contenders, steady, strict=True):
                if (part := parts.get(name)) is None:
                    cells += ["-", "-"]
                else:
                    share = part.seconds / (c.warm.blocked or 1.0)
                    cells += [show_seconds(part.seconds), f"{share:.0%}"]
            rows.append((name, *cells, what))
        for name, attribute, what in _WHOLE:
            seconds = [getattr(c.warm, attribute) for c in self.contenders]
            cells = [x for s in seconds for x in (show_seconds(s), "")]
            rows.append((name, *cells, what))
        header = ["part", *[x for name in names for x in (name, "share")], ""]
        notes = [
            "Timed without a profiler, in interleaved rounds; lookup and wait are "
            "differences. A part without a figure is included in another, mostly in "
            "lookup."
        ]
        notes += [f"{c.name}: {note}" for c in self.contenders for note in c.warm.notes]
        return Table("A warm call", tuple(header), rows, tuple(notes))

    def _functions(self) -> Table:
        rows: list[tuple[float, Sequence[Any]]] = []
        for c in self.contenders:
            own: dict[tuple[str, str, str], float] = {}
            for node in c.tree.walk():
                if node.kind != "compiled" and node is not c.tree:
                    key = (node.name, node.place, node.kind)
                    own[key] = own.get(key, 0.0) + node.own
            for (name, place, kind), seconds in own.items():
                share = seconds / (c.tree.seconds or 1.0)
                if share >= 0.01:
                    row = (c.name, f"{share:.0%}", show_seconds(seconds), name, place)
                    rows.append((share + (kind == "yours"), row))
        rows.sort(key=lambda row: -row[0])
        notes = (
            "Self time under the profiler, which slows Python down; your own functions "
            "first. A sampling profiler sees only Python functions, not what happens "
            "in compiled code.",
        )
        header = ("", "share", "a call", "function", "file")
        kept = [row for _, row in rows[:_FUNCTIONS]]
        return Table("Python functions in a warm call", header, kept, notes)

    def full_text(self) -> str:
        """The tables, followed by the call trees."""
        trees = [f"--- {c.name} ---\n{tree_text(c.tree)}" for c in self.contenders]
        return "\n\n".join([str(self), *trees])

    def html_body(self) -> str:
        """The tables and the call trees."""
        trees = [
            f"<h4>{escape(c.name)}</h4>\n{tree_html(c.tree)}" for c in self.contenders
        ]
        return "\n".join([self._repr_html_(), "<h3>Call trees</h3>", _LEGEND, *trees])


_WHOLE = (
    ("returns", "dispatch", "until the call returns"),
    ("is ready", "blocked", "until the result is ready"),
)
_LEGEND = (
    "<p>Functions of libraries, including Equinox, JAX and eqx_fastjit, are folded; "
    "yours are expanded. Compiled code is divided into the parts above, in proportion "
    "to their timings.</p>"
)


def html_page(profiles: Sequence[Profile]) -> str:
    """A page that needs nothing else."""
    title = ", ".join(p.name for p in profiles)
    body = "\n".join(p.html_body() for p in profiles)
    return html_document(f"Profile: {title}", body, PAGE_STYLE + STYLE)


def profile(
    f: Any,
    *args: Any,
    n: int | None = None,
    html: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> Profile:
    """Profile warm calls under `eqx_fastjit`, Equinox and `jax.jit`.

    For `jax.jit`, the statics are removed by hand. Functions are profiled without
    donation. This needs pyinstrument (`pip install pyinstrument`).

    **Arguments:**

    - `f`: a function, jitted in any way or not.
    - `*args`, `**kwargs`: the arguments of the calls.
    - `n`: how many calls of each to sample. By default, as many as take half a second.
    - `html`: a file, to which a self-contained page is written. It is checked that the
        file can be written before anything runs.

    **Returns:**

    A `Profile`. `str(profile)` has the tables, and `full_text()` also has the call
    trees. Raises `ValueError` for less than one call, `OSError` for a file that cannot
    be written, and `ImportError` without pyinstrument.
    """
    importlib.import_module("pyinstrument")  # say now that it is missing
    if n is not None and n < 1:
        raise ValueError(f"n={n}: expected at least 1")
    if html is not None:
        check_writable(html)
    it = target(f)
    args, kwargs = it.complete(args, kwargs)
    with Progress(f"profile of {it.name}") as progress:
        calls: dict[str, Call] = {}
        for name, call in _contenders(it.fun, args, kwargs).items():
            progress.stage(f"{name}: compiling")
            calls[name] = prepare(target(call[0]), *call, progress)
        warm = time_calls(calls, _ROUNDS, progress)
        found = tuple(
            _sampled(name, call, warm[name], n, progress)
            for name, call in calls.items()
        )
    out = Profile(it.name, found)
    if html is not None:
        Path(html).write_text(html_page([out]), encoding="utf-8")
    return out


def _contenders(
    fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """The function, jitted in three ways, with its arguments."""
    arrays, statics = eqx.partition((fun, args, kwargs), eqx.is_array)

    def without_statics(arrays: Any) -> Any:
        fun, args, kwargs = eqx.combine(arrays, statics)
        return eqx.filter(fun(*args, **kwargs), eqx.is_array)

    return {
        "eqx_fastjit": (filter_jit(fun), args, kwargs),
        "equinox": (equinox_filter_jit(fun), args, kwargs),
        "jax.jit": (jax.jit(without_statics), (arrays,), {}),
    }


def _sampled(
    name: str, call: Call, warm: WarmCall, n: int | None, progress: Progress
) -> Contender:
    from pyinstrument import Profiler
    from pyinstrument.processors import aggregate_repeated_calls

    n = n or _calls(warm)
    progress.stage(f"{name}: {n} calls", n * warm.blocked)
    with Profiler(interval=_INTERVAL, async_mode="disabled") as profiler:
        _run(call.f, call.args, call.kwargs, n)
    session: Any = profiler.last_session
    seconds = session.duration / n
    root = session.root_frame(trim_stem=False)
    if root is None:  # too short for a single sample
        tree = Node("the calls", "", seconds, 0.0, "library")
    else:
        root = aggregate_repeated_calls(root, {})
        tree = make_tree(root, n, _until_it_returns(warm))
    return Contender(name, n, seconds, tree, warm)


def _calls(warm: WarmCall) -> int:
    """So many that enough is sampled until they return, which is all that is shown."""
    until_they_return = _SECONDS / max(warm.dispatch, 1e-9)
    return max(_LEAST_CALLS, int(min(until_they_return, _LONGEST / warm.blocked)))


def _until_it_returns(warm: WarmCall) -> list[Part]:
    """The parts of a call until it returns."""
    own = [part for part in warm.parts if part.name != "wait"]
    waits = max(warm.dispatch - sum(part.seconds for part in own), 0.0)
    return [*own, Part("wait", waits, False, PARTS["wait"])]


def _run(jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any], n: int) -> None:
    """Make `n` calls, no more of them at once than JAX lets wait."""
    for done in range(0, n, _AT_ONCE):
        jax.block_until_ready(run_calls(jitted, args, kwargs, min(_AT_ONCE, n - done)))


def run_calls(
    jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any], n: int
) -> Any:
    """The frame that the tree begins with: what is waited for outside is not in it."""
    out = None
    for _ in range(n):
        out = jitted(*args, **kwargs)
    return out
