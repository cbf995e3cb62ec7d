"""The table that `eqx-fastjit bench` prints."""

import platform
import statistics
from importlib.metadata import version

import jax
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

import eqx_fastjit

from ._case import CONTENDERS, make_case
from ._timing import measure, Timing


def _ratio(timings: dict[str, Timing], mode: str, rival: str) -> str:
    """Ours over a rival's: the median over rounds, each round against itself."""
    if rival not in timings:
        return ""
    pairs = zip(
        getattr(timings["ours"], mode), getattr(timings[rival], mode), strict=True
    )
    return f"{statistics.median([ours / theirs for ours, theirs in pairs]):.2f}"


def run(cases: list[str], rounds: int) -> None:
    """Time the cases and print the table.

    **Arguments:**

    - `cases`: names of cases.
    - `rounds`: how many rounds to time each contender for.
    """
    console = Console()
    device = jax.devices()[0]
    console.print(
        f"{device.platform} ({device.device_kind}), {platform.machine()}, "
        f"Python {platform.python_version()}, "
        + ", ".join(f"{p} {version(p)}" for p in ("jax", "jaxlib", "equinox"))
        + f", eqx_fastjit {eqx_fastjit.__version__} ({eqx_fastjit.route()} route)"
    )
    results: dict[str, dict[str, Timing]] = {}
    bar = Progress(
        TextColumn("{task.description:>16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=len(cases) * rounds)
        for name in cases:
            bar.update(task, description=name)
            steps = measure(make_case(name), rounds)
            while True:
                try:
                    next(steps)
                except StopIteration as stop:
                    results[name] = stop.value
                    break
                bar.advance(task)
    for mode, title in (
        ("dispatch", "Dispatch only: until the call returns"),
        ("blocked", "Blocked: until the result is there"),
    ):
        console.print(_table(results, mode, title))
    console.print(
        "jit: jax.jit, statics removed by hand. flat: jax.jit on a flat list of "
        "arrays. eqx: equinox.filter_jit, which always waits for the result.\n"
        "Microseconds a call, medians. Ratios are medians over rounds in one process; "
        "below 1 is in our favour."
    )


def _table(results: dict[str, dict[str, Timing]], mode: str, title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("case")
    for contender in CONTENDERS:
        table.add_column(contender, justify="right")
    rivals = [c for c in CONTENDERS if c != "ours"]
    for rival in rivals:
        table.add_column(f"ours/{rival}", justify="right", style="bold")
    for name, timings in results.items():
        cells = [
            f"{statistics.median(getattr(timings[c], mode)):.1f}"
            if c in timings
            else ""
            for c in CONTENDERS
        ]
        table.add_row(name, *cells, *[_ratio(timings, mode, r) for r in rivals])
    return table
