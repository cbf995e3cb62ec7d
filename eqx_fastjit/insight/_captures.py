"""Values from outside that a function read when it was traced, and what they are now.

A trace keeps the globals, closure cells and default arguments that the function read. A
later change is ignored until something triggers a retrace, and then takes effect. A
`Snapshot` remembers the values without keeping them alive.

Taking one is cheap, because it includes all *names* in the code. Only for those that
have changed, it is looked up whether they are read, and where.
"""

import dataclasses
import threading
import types
import weakref
from typing import Any

from eqx_fastjit import _record
from eqx_fastjit._record import Trace
from eqx_fastjit._units import plural

from ._reads import python_function
from ._snapshots import Change, changed, Snapshot, snapshot
from ._table import Report, Table


# Snapshots that are kept for one function: one for each of its last traces.
_MAX_SNAPSHOTS = 16

_lock = threading.RLock()  # a signal handler may call a jitted function, too
_snapshots: weakref.WeakKeyDictionary[types.FunctionType, dict[Any, Snapshot]] = (
    weakref.WeakKeyDictionary()
)


def watch(f: Any, key: Any = None, arguments: Any = ()) -> None:
    """Remember what a function would read if it were traced now, for `captures`.

    This never raises. Call it when the function is traced, not in each call.

    **Arguments:**

    - `f`: a function, jitted or not.
    - `key`: identifies the trace. A newer snapshot replaces one with an equal key. It
        must be hashable, and is kept alive.
    - `arguments`: as for `snapshot`.
    """
    try:
        if (function := python_function(f)) is None:
            return
        taken = snapshot(f, arguments)
        with _lock:
            kept = _snapshots.setdefault(function, {})
            kept.pop(key, None)
            kept[key] = taken
            while len(kept) > _MAX_SNAPSHOTS:
                del kept[next(iter(kept))]
    except Exception:
        pass


def remember(f: Any, key: Any, more: Snapshot) -> None:
    """Add to what was remembered of a trace. The arguments are those of `watch`."""
    function = python_function(f)
    with _lock:
        kept = {} if function is None else _snapshots.get(function, {})
        if key in kept:
            kept[key] = Snapshot((*kept[key].values, *more.values))


def _on_trace(trace: Trace, source: Any) -> None:
    watch(source, trace.number, _record.arguments())


# From the import of `eqx_fastjit.insight` on; 1 ms at most, and only where something is
# traced.
_record.before.append(_on_trace)


@dataclasses.dataclass(frozen=True)
class Captures(Report):
    """The result of `captures`."""

    name: str
    changes: tuple[Change, ...]
    # How many traces have been looked at.
    snapshots: int

    def title(self) -> str:
        """The number of changes, in a line."""
        n = len(self.changes)
        values = f"{plural(n, 'value')} {'has' if n == 1 else 'have'}"
        traces = f"its {self.snapshots} traces" if self.snapshots != 1 else "its trace"
        return f"{self.name}: {values if n else 'nothing has'} changed since {traces}"

    def tables(self) -> list[Table]:
        """The changes."""
        rows = [
            (c.name, c.kind, c.where, c.function, c.old, c.new) for c in self.changes
        ]
        notes = ()
        if rows:
            notes = (
                "Earlier traces still use the old value. Pass it as an argument, "
                "or call `f.clear_cache()` after a change.",
            )
        header = ("name", "kind", "read at", "in", "when traced", "now")
        return [Table("Changed since the trace", header, rows, notes)]


def captures(f: Any) -> Captures:
    """Values from outside that a function read while tracing, and that have changed.

    These are globals, closure cells and defaults. The search covers the names in the
    function's code and in functions of the same module that it calls (two levels), and
    attributes of plain objects (one level). Large arrays are compared by a sample, and
    large containers and other objects by identity.

    **Arguments:**

    - `f`: a function that was traced by `eqx_fastjit.filter_jit` after
        `eqx_fastjit.insight` was imported, or that was passed to `watch`.

    **Returns:** a `Captures`. Raises `ValueError` if nothing is known about `f`, and
    `TypeError` if it is not a function.
    """
    if not callable(f):
        raise TypeError(f"expected a function; got a {type(f).__name__}")
    function = python_function(f)
    name = getattr(f, "__name__", type(f).__name__)
    with _lock:
        kept = {} if function is None else dict(_snapshots.get(function, {}))
    if not kept:
        raise ValueError(
            f"it is not known what {name} read: import `eqx_fastjit.insight`, or call "
            "`insight.watch(f)`, before its first call"
        )
    found: dict[tuple[str, str, str, int], Change] = {}
    for taken in kept.values():
        for change in changed(taken):
            key = (change.name, change.kind, change.file, change.line)
            found.setdefault(key, change)
    return Captures(name, tuple(found.values()), len(kept))
