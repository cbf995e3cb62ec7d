"""What the doctor sees of a program that runs: compilations, imports and waits."""

import dataclasses
import threading
import time
from typing import Any, NamedTuple


class Import(NamedTuple):
    """An import statement of the program, with all that it imported."""

    name: str
    started: float
    seconds: float


class Wait(NamedTuple):
    """A line of the program that waited for the device."""

    file: str
    line: int
    # `float(...)`, `print`, `block_until_ready` or the like.
    what: str
    times: int
    seconds: float


class Watch:
    """Watches this process. Nothing of it imports JAX before the program does."""

    def __init__(self) -> None:
        self.started = time.time()
        self.seconds = 0.0
        self.records: list[Any] = []
        self.imports: list[Import] = []
        self.loops: list[Any] = []
        # JAX's directory for what was compiled, if it is set.
        self.cache: str | None = None
        self.notes: list[str] = []
        self._waits: Any = None
        self._stale: Any = None

    def jax_imported(self) -> None:
        """To be called once JAX, Equinox and the engine are there."""
        from eqx_fastjit import _events

        from ._stale import StaleGlobals
        from ._waits import Waits

        self._stale, self._waits = StaleGlobals(), Waits()
        _events.observers.append(self._on_event)
        _events.observers.append(self._stale.on_event)
        self._waits.__enter__()
        self.notes += [f"Waits in {name} are not seen." for name in self._waits.missing]

    def imported(self, name: str, seconds: float) -> None:
        """An outermost import of the main thread has ended."""
        began = time.time() - seconds
        if threading.current_thread() is threading.main_thread():
            spent = sum(r.seconds for r in self.records if r.started >= began)
            seconds = max(0.0, seconds - spent)
            self.imports.append(Import(name, began, seconds))

    def stop(self) -> None:
        """The program is over."""
        self.seconds = time.time() - self.started
        if self._waits is None:
            self.notes.append("The program did not import JAX.")
            return
        from eqx_fastjit import _events

        self._waits.__exit__(None, None, None)
        _events.observers.remove(self._on_event)
        _events.observers.remove(self._stale.on_event)
        self._stale.check()

        import jax

        self.cache = getattr(jax.config, "jax_compilation_cache_dir", None)

    def report(self, program: str, exit_code: int) -> Any:
        """The report on the program, which is over."""
        from ._report import make_report

        return make_report(
            program,
            self.records,
            started=self.started,
            seconds=self.seconds,
            exit_code=exit_code,
            imports=self.imports,
            waits=self.waits,
            stale=self.stale,
            loops=self.loops,
            cache=self.cache,
            notes=self.notes,
        )

    @property
    def waits(self) -> list[Wait]:
        """By line, the longest first."""
        if self._waits is None:
            return []
        from ._words import show_file

        found = [
            Wait(show_file(w.place.file), w.place.line, w.what, w.count, w.seconds)
            for w in self._waits.found()
        ]
        return sorted(found, key=lambda wait: -wait.seconds)

    @property
    def stale(self) -> list[Any]:
        """Globals that have changed since a trace read them."""
        return [] if self._stale is None else self._stale.found

    def _on_event(self, event: Any) -> None:
        from eqx_fastjit import _events

        from ._records import record_of
        from ._unrolled import unrolled_loops

        record = record_of(event, _events.history)
        # JAX imports what it lowers with when it lowers for the first time.
        spent = sum(x.seconds for x in self.imports if x.started >= record.started)
        if spent:
            lower = max(0.0, record.lower - spent)
            record = dataclasses.replace(record, lower=lower)
        self.records.append(record)
        self.loops += unrolled_loops(event)
