"""Watching a program: what it traces, compiles and waits for."""

import dataclasses
import functools as ft
import time
import weakref
from collections.abc import Callable
from typing import Any, TYPE_CHECKING

from ._plain import PlainJits
from ._sites import Line, user_line
from ._waits import Waits


if TYPE_CHECKING:
    from eqx_fastjit._record import Trace

# Traces that are looked into, for each function: it takes about as long as a trace.
_INSPECTED = 2
# Snapshots that are kept for each function.
_SNAPSHOTS = 8


@dataclasses.dataclass
class Seen:
    """A trace of ours, and what was found out about it."""

    trace: "Trace"
    # The line of the program that led to it.
    site: Line | None
    # Texts and numbers alone; see `inspect_jaxpr` and `compare_eager`.
    inspection: Any = None
    comparison: Any = None
    # Why there is no comparison, if one was asked for.
    not_compared: str = ""


class Watch:
    """Watches this process from the import of JAX on.

    Calls that neither compile nor wait for the device are left alone. Nothing of what
    is kept refers to the program's arrays.

    **Arguments:**

    - `numerics`: whether to compare each function with its eager run, once.
    """

    def __init__(self, *, numerics: bool = False):
        self.numerics = numerics
        self.started = time.time()
        self.seconds = 0.0
        self.seen: dict[int, Seen] = {}
        self.plain = PlainJits()
        self.waits = Waits(lambda: self.plain.seconds)
        self.watches_jax = False
        self.watches_ours = False
        # Spent on looking into traces: not the program's own time.
        self.own_seconds = 0.0
        # Weakly, by function: what it read from around it at each trace.
        self.snapshots: list[tuple[Trace, Any]] = []
        self._sources: dict[int, Any] = {}
        self._inspected: dict[Any, int] = {}

    def jax_imported(self) -> None:
        """JAX is there: to be called once it has been imported."""
        self.watches_jax = True
        self.plain.start()
        self.waits.start()

    def equinox_imported(self) -> None:
        """Equinox is there, and our `filter_jit` in its place."""
        from eqx_fastjit import _record

        self.watches_ours = True
        _record.before.append(self._before)
        _record.after.append(self._after)
        _record.called.append(self._called)

    def stop(self) -> None:
        """The program is over."""
        self.seconds = time.time() - self.started
        if self.watches_jax:
            self.waits.stop()
            self.plain.stop()
        if self.watches_ours:
            from eqx_fastjit import _record

            _record.before.remove(self._before)
            _record.after.remove(self._after)
            _record.called.remove(self._called)

    # --- called back by `_record` ---

    def _before(self, trace: "Trace", source: Any) -> None:
        if source is not None:
            self._sources[trace.number] = weakref.ref(source)

    def _after(self, trace: "Trace") -> None:
        # Once for each stage, of what is compiled ahead of time.
        if trace.number not in self.seen:
            self.seen[trace.number] = Seen(trace, user_line())
            source = self._sources.pop(trace.number, None)
            if source is not None and not trace.failed:
                # Now, not before: what the trace itself has changed is no news.
                self._remember(trace, source())

    def _remember(self, trace: "Trace", source: Any) -> None:
        from eqx_fastjit.insight._captures import snapshot

        if source is None:
            return
        number = trace.function.number
        own = [
            i for i, (t, _) in enumerate(self.snapshots) if t.function.number == number
        ]
        if len(own) >= _SNAPSHOTS:
            del self.snapshots[own[0]]
        self.snapshots.append((trace, snapshot(source)))

    def _called(self, trace: "Trace", jitted: Any, arrays: list[Any]) -> None:
        seen = self.seen.get(trace.number)
        if seen is None or trace.inside is not None or not trace.retraced:
            return
        key = trace.function.key()
        done = self._inspected.get(key, 0)
        if done >= _INSPECTED:
            return
        self._inspected[key] = done + 1
        start = time.perf_counter()
        self._guarded(ft.partial(self._inspect, seen, jitted, arrays))
        if self.numerics and done == 0:
            self._guarded(ft.partial(self._compare, seen, jitted, arrays))
        self.own_seconds += time.perf_counter() - start

    def _guarded(self, look: Callable[[], None]) -> None:
        """The program must not fail because of what we look for."""
        try:
            look()
        except Exception as e:
            if self.debug:
                raise
            self.failures.append(f"{type(e).__name__}: {e}")
