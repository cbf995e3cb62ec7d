"""Values that a trace has read beside its arguments, and that have changed since.

A trace keeps what its function read of globals, of variables of the function around it,
of entries of dictionaries there, and of attributes of plain objects. Calls do not see
that these change. It is a finding only if such a trace is called again.
"""

import collections
import contextlib
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from eqx_fastjit._engine import ENGINE
from eqx_fastjit._statics import DYNAMIC, state_of
from eqx_fastjit._texts import describe_static

from ._describe import describe, Leaf
from ._events import Event
from ._reads import is_plain, MISSING, Read, reads_of
from ._rules import part_of, Row
from ._why import line_of, name_of


# Values that are compared; anything else may change without being another one.
_VALUES = (bool, int, float, complex, str, bytes, type(None))
# Of an array of NumPy that is compared.
_MAX_BYTES = 4096


class _Value(NamedTuple):
    """A value as it was after a trace. It keeps no array alive."""

    read: Read
    text: str
    # Whether another one is the same.
    is_same: Callable[[Any], bool]


def _same_as(value: Any) -> Callable[[Any], bool] | None:
    """Whether another value is the same; `None` if that cannot be known."""
    if isinstance(value, jax.Array):
        array = weakref.ref(value)
        return lambda x: x is array()
    if isinstance(value, np.ndarray):  # which may be written to
        if value.nbytes > _MAX_BYTES or value.dtype.hasobject:
            return None
        state = state_of(value)
        return lambda x: isinstance(x, np.ndarray) and state_of(x) == state
    if type(value) not in _VALUES:
        return None
    return lambda x: x is value or (type(x), x) == (type(value), value)


# --- traces and calls -----------------------------------------------------------------


class _Trace(NamedTuple):
    """What one trace of a function has read."""

    event: Event
    # Shapes, dtypes and weak types that it was traced for.
    shapes: list[Any]
    values: list[_Value]


class StaleValues:
    """Notes what each trace has read, and whether it was called after that changed."""

    def __init__(self) -> None:
        # By what JAX traces, which is kept as long as its specialization.
        self._traces = weakref.WeakKeyDictionary[Any, list[_Trace]]()
        # What functions that are a part of a trace have read, by the event of that.
        self._parts = collections.defaultdict[int, list[_Value]](list)
        self._found: dict[Any, Row] = {}

    def on_event(self, event: Event) -> None:
        """A trace is over. What it changed itself, such as a counter, is read now."""
        specialization = ENGINE.active()
        if specialization is None or not event.traced or event.failed:
            return
        flat = specialization.flat
        reads = reads_of(flat.source and flat.source(), _plain_arguments(flat))
        values = [
            _Value(read, describe_static(x), is_same)
            for read, x in ((read, read.value()) for read in reads)
            if (is_same := _same_as(x))
        ]
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
                now = value.read.value()
                if now is MISSING or value.is_same(now):
                    continue
                key = trace.event.function.key(), str(value.read.path)
                if key in self._found:
                    continue
                leaves = describe([(str(i), x) for i, x in enumerate(arrays)])
                if _shapes(leaves) == trace.shapes:  # others have a trace of their own
                    self._found[key] = _row(trace.event, value, now)

    def found(self) -> list[Row]:
        """The values that changed before a call that did not see it."""
        return list(self._found.values())


def _shapes(leaves: Sequence[Leaf]) -> list[Any]:
    return [(x.shape, x.dtype, x.weak_type) for x in leaves if x.kind == "array"]


def _plain_arguments(flat: Any) -> Mapping[str, Any]:
    """The arguments that are compared by identity, whatever their attributes are."""
    arguments: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # of a class that is not built of `None`
        values = flat.structure.rebuild([None] * flat.structure.leaves.count(DYNAMIC))
        arguments |= flat.function().arguments_of(values)
    for x in tuple(arguments.values()):
        if isinstance(x, types.MethodType):  # what is jitted, and its instance
            arguments.setdefault(x.__code__.co_varnames[0], x.__self__)
    plain = {name: x for name, x in arguments.items() if is_plain(x)}
    return weakref.WeakValueDictionary(plain)


def _row(event: Event, value: _Value, now: Any) -> Row:
    new = describe_static(now)
    path, name = str(value.read.path), name_of(event.function)
    last = f"another {new}" if new == value.text else new
    part = part_of(
        "stale-value",
        {"path": path, "first": value.text, "last": last, "function": name},
        path=path,
        values=(value.text, new),
        line=value.read.place,
    )
    return Row(name, (part,), line_of(event) or event.function.place)
