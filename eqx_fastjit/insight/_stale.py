"""Values that a trace has read beside its arguments, and that have changed since.

A trace keeps what its function read of globals, of variables of the function around it,
of entries of dictionaries there, and of attributes of plain objects. Calls do not see
that these change. It is a finding only if such a trace is called again.
"""

import collections
import dataclasses
import types
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from eqx_fastjit._engine import ENGINE
from eqx_fastjit._statics import DYNAMIC, state_of
from eqx_fastjit._texts import describe_static

from ._describe import describe, Leaf
from ._events import Event
from ._reads import is_plain, MISSING, Read, reads_of, value_at
from ._rules import part_of, Row
from ._why import line_of, name_of


# Values that are compared; anything else may change without being another one.
_VALUES = (bool, int, float, complex, str, bytes, type(None))
# Of an array of NumPy that is compared.
_MAX_BYTES = 4096


class _Value:
    """A value as it was after a trace. It keeps no array alive, and no function."""

    def __init__(self, read: Read):
        self.path, self.place = read.path, read.place
        self._function: Any = weakref.ref(read.function)
        self._arguments = read.arguments
        self.text = describe_static(read.value)
        self._is_array = isinstance(read.value, jax.Array)
        self._then = weakref.ref(read.value) if self._is_array else _content(read.value)

    def now(self) -> Any:
        """The value now, or `MISSING` if it is the same, or gone."""
        found = value_at(self.path, self._function(), self._arguments)
        if self._is_array:
            return MISSING if found is self._then() else found
        then, now = self._then, _content(found)
        is_same = now is then or (type(now), now) == (type(then), then)
        return MISSING if is_same else found


def _content(value: Any) -> Any:
    """What is compared of a value: all of a NumPy array, which may be written to."""
    return state_of(value) if isinstance(value, np.ndarray) else value


def _is_compared(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.nbytes <= _MAX_BYTES and not value.dtype.hasobject
    return isinstance(value, jax.Array) or type(value) in _VALUES


# --- traces and calls -----------------------------------------------------------------


@dataclasses.dataclass
class _Trace:
    """What one trace of a function has read."""

    event: Event
    # Shapes, dtypes and weak types that it was traced for.
    shapes: list[Any]
    values: list[_Value]


class StaleValues:
    """Notes what each trace has read, and whether it was called after that changed."""

    def __init__(self) -> None:
        # By what JAX traces, which is kept as long as its specialization.
        self._traces: weakref.WeakKeyDictionary[Any, list[_Trace]] = (
            weakref.WeakKeyDictionary()
        )
        # What functions that are a part of a trace have read, by the event of that.
        self._parts: dict[int, list[_Value]] = collections.defaultdict(list)
        self._found: dict[Any, Row] = {}

    def on_event(self, event: Event) -> None:
        """A trace is over. What it changed itself, such as a counter, is read now."""
        specialization = ENGINE.active()
        if specialization is None or not event.traced or event.failed:
            return
        flat = specialization.flat
        source = flat.source and flat.source()
        arguments = _plain_arguments(flat)
        reads = reads_of(source, arguments)
        values = [_Value(x) for x in reads if _is_compared(x.value)]
        values += self._parts.pop(event.number, [])
        if event.inside is not None:
            self._parts[event.inside] += values
        elif values:
            trace = _Trace(event, _shapes(event.signature), values)
            self._traces.setdefault(flat, []).append(trace)

    def on_call(self, flat: Any, arrays: Sequence[Any]) -> None:
        """A specialization is about to be called, outside of all traces.

        **Arguments:**

        - `flat`: what JAX traces for it.
        - `arrays`: those of the call.
        """
        for trace in self._traces.get(flat, ()):
            for value in trace.values:
                if (now := value.now()) is MISSING:
                    continue
                key = trace.event.function.key(), str(value.path)
                if key not in self._found and _is_for(trace, arrays):
                    self._found[key] = _row(trace.event, value, now)

    def found(self) -> list[Row]:
        """The values that changed before a call that did not see it."""
        return list(self._found.values())


def _is_for(trace: _Trace, arrays: Sequence[Any]) -> bool:
    """Whether a call with these arrays uses a trace: it has the same shapes."""
    leaves = describe([(str(i), x) for i, x in enumerate(arrays)])
    return _shapes(leaves) == trace.shapes


def _shapes(leaves: Sequence[Leaf]) -> list[Any]:
    return [(x.shape, x.dtype, x.weak_type) for x in leaves if x.kind == "array"]


def _plain_arguments(flat: Any) -> Mapping[str, Any]:
    """The arguments that are compared by identity, whatever their attributes are."""
    function, structure = flat.function(), flat.structure
    try:
        values = structure.rebuild([None] * structure.leaves.count(DYNAMIC))
        arguments = dict(function.arguments_of(values))
    except Exception:  # of a class that is not built of `None`
        return {}
    for x in tuple(arguments.values()):
        if isinstance(x, types.MethodType):  # what is jitted, and its instance
            arguments.setdefault(x.__code__.co_varnames[0], x.__self__)
    plain = {name: x for name, x in arguments.items() if is_plain(x)}
    return weakref.WeakValueDictionary(plain)


def _row(event: Event, value: _Value, now: Any) -> Row:
    new = describe_static(now)
    path, name = str(value.path), name_of(event.function)
    last = f"another {new}" if new == value.text else new
    part = part_of(
        "stale-value",
        {"path": path, "first": value.text, "last": last, "function": name},
        path=path,
        values=(value.text, new),
        line=value.place,
    )
    return Row(name, (part,), line_of(event) or event.function.place)
