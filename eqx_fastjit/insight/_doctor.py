"""`doctor`: of a block of code, what `eqx-fastjit doctor` says of a program."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from eqx_fastjit.insight.record._run import Run

from ._shown import Shown
from ._watch import Watch, watching
from .record._events import history
from .record._file import as_json, cache_directory
from .rules._rules import Row
from .show._report import make_report, Report
from .show._text import plain_text


class DoctorReport(Shown):
    """What the doctor has to say of a block of code, or of a program up to now.

    `print` shows it as text, and a notebook as a page. Seconds are of the wall clock.
    """

    def __init__(self, report: Report | None = None) -> None:
        self._report = report

    @property
    def rows(self) -> tuple[Row, ...]:
        """What costs, by what can be saved of it. What makes results wrong is first."""
        return self._made().rows

    @property
    def findings(self) -> tuple[Row, ...]:
        """The rows that save something in this run. Empty if nothing can be mended."""
        return self._made().findings

    def to_dict(self) -> dict[str, Any]:
        """The report for other programs, as `doctor --json` writes it.

        Its `schema` is the version of this form.
        """
        return as_json(self._made())

    def to_html(self) -> str:
        """The report as a page of its own, which loads nothing."""
        from .show._page import page  # and with it jinja2, which a text does not need

        return page(self._made())

    def text(self, *, verbose: bool = False) -> str:
        """The report as text. `verbose` shows every row, edit and compilation."""
        return plain_text(self._made(), verbose).strip()

    def __str__(self) -> str:
        return "the block has not ended" if self._report is None else self.text()

    def _repr_html_(self) -> str | None:
        return None if self._report is None else super()._repr_html_()

    def _made(self) -> Report:
        if self._report is None:
            raise RuntimeError("doctor: the report is there once the block has ended.")
        return self._report


_lock = threading.Lock()


@contextlib.contextmanager
def doctor(
    name: str = "this block", *, least: float | None = None
) -> Iterator[DoctorReport]:
    """Watch a block of code, and report what it compiled, why, and what would help.

    What was compiled before is the history that it is compared with.

    **Arguments:**

    - `name`: what the report calls the block.
    - `least`: the seconds below which nothing has a row. By default 0.1, or a hundredth
        of the seconds of a longer run.

    **Returns:**

    As a context manager, a `DoctorReport`, which is there once the block has ended,
    also by an exception. Exceptions are passed on.

    **Raises:**

    `RuntimeError` if another `doctor` is watching, in this thread or another. Under
    `eqx-fastjit doctor`, which watches the whole program, the report is that up to the
    end of the block.

    !!! example

        ```python
        with eqx_fastjit.insight.doctor() as report:
            train(model, epochs=1)
        print(report)
        ```
    """
    result, watch = DoctorReport(), None
    with _lock:
        if (other := watching()) is None:
            watch = Watch(is_program=False)
            watch.jax_imported()
        elif not other.is_program:
            raise RuntimeError(
                "doctor: another one is watching this process already. Use one at a "
                "time, in one thread."
            )

    try:
        yield result
    finally:
        # An exception of the block passes through here: none of this replaces it.
        try:
            if watch is not None:
                watch.stop()
            result._report = watch.report(name, 0, least) if watch else _up_to_now()
        except Exception as e:
            print(f"eqx_fastjit: no report on {name}: {e!r}", file=sys.stderr)


def report() -> DoctorReport:
    """What the doctor has to say up to now.

    **Returns:**

    A `DoctorReport`: under `eqx-fastjit doctor` and within `doctor()`, of what these
    have watched. Elsewhere, of all that the process has compiled, without waits and
    device time.
    """
    return DoctorReport(_up_to_now())


def _up_to_now() -> Report:
    name = "up to now"
    if (current := watching()) is not None:
        return current.report(name, None)
    events = history()
    started = min((e.started for e in events), default=0.0)
    ended = max((e.started + e.elapsed for e in events), default=0.0)
    cache = cache_directory()
    return make_report(Run(name, started, ended - started, None, cache, events))
