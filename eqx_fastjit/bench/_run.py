"""Running many cases, with a progress bar."""

from collections.abc import Callable
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ._case import Case
from ._results import even, Results
from ._session import Refused, run_case


class Job(NamedTuple):
    """A case with what is to be run of it."""

    case: Case
    contenders: tuple[str, ...]
    device: dict[str, str]
    rounds: int

    @property
    def steps(self) -> int:
        """How far the progress bar goes: building takes about as long as timing."""
        return self.rounds * (1 + len(self.contenders))

    def entry(self) -> dict[str, Any]:
        """Its entry in the results, without times as yet."""
        named = {x: getattr(self.case, x) for x in ("name", "group", "title", "unit")}
        device = {x: self.device[x] for x in ("device", "device_kind")}
        return {**named, "size": dict(self.case.size), **device, "times": {}}


def run_jobs(console: Console, jobs: list[Job], results: Results) -> None:
    """Time all, adding to the results.

    On Ctrl-C, `interrupted` is set in the results, and they are what was measured.
    """
    bar = Progress(
        TextColumn("{task.description:>24}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("time left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        speed_estimate_period=600,  # cases differ, so use the speed of all so far
    )
    proved: dict[str, dict[str, Any]] = {}
    try:
        with bar:
            task = bar.add_task("", total=sum(job.steps for job in jobs))
            done = 0
            for job in jobs:
                bar.update(task, completed=done, description=job.case.name)
                if not console.is_terminal:  # no bar is drawn
                    console.print(f"Timing {job.case.name}", highlight=False)
                _run(job, results, proved, lambda n: bar.advance(task, n))
                done += job.steps
    except KeyboardInterrupt:
        results["interrupted"] = True


def _run(
    job: Job, results: Results, proved: dict[str, Any], advance: Callable[[int], None]
) -> None:
    entry, device = job.entry(), job.device["device"]
    times, seen = entry["times"], proved.setdefault(device, {})
    try:
        run_case(job.case, job.contenders, device, job.rounds, times, seen, advance)
    except Refused as e:
        results["problems"].append(f"{job.case.name}: {e}")
    finally:
        if (entry := even(entry))["times"]:
            results["cases"].append(entry)
