"""Values that a trace has read beside its arguments, and that have changed since.

A trace keeps what its function read of globals, of variables of the function around it,
of entries of dictionaries there, and of attributes of plain objects. Calls do not see
that these change. It is a finding only if such a trace is called again.
"""

import contextlib
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from eqx_fastjit._engine import ENGINE
from eqx_fastjit._facts import aval_of
from eqx_fastjit._statics import DYNAMIC, state_of
from eqx_fastjit._texts import describe_static

from ._events import Event
from ._reads import MISSING, plain_of, Read, reads_of
from ._rules import part_of, Row
from ._why import line_of, name_of


# Values that are compared; anything else may change without being another one. And
# the bytes up to which an array of NumPy is.
_VALUES = (bool, int, float, complex, str, bytes, type(None))
_MAX_BYTES = 4096


class _Value(NamedTuple):
    """A value as it was after a trace. It keeps no array alive."""

    event: Event
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


class StaleValues:
    """Notes what each trace has read, and whether it was called after that changed."""

    def __init__(self) -> None:
        # By what JAX traces, which is kept as long as its specialization.
        self._read = weakref.WeakKeyDictionary[Any, list[_Value]]()
        self._found: dict[Any, Row] = {}

    def on_event(self, event: Event) -> None:
        """A trace is over. What it changed itself, such as a counter, is read now."""
        specialization = ENGINE.active()
        is_call = event.traced and not event.failed and event.inside is None
        if specialization is None or not is_call:
            return
        flat = specialization.flat
        values = self._read.setdefault(flat, [])
        for read in reads_of(flat.source and flat.source(), _plain_arguments(flat)):
            value = read.value()
            if (is_same := _same_as(value)) is not None:
                values.append(_Value(event, read, describe_static(value), is_same))

    def on_call(self, flat: Any, arrays: Sequence[Any]) -> None:
        """What is traced as `flat` is about to be called, outside of all traces."""
        for value in self._read.get(flat, ()):
            event, read = value.event, value.read
            now = read.value()
            if now is MISSING or value.is_same(now):
                continue
            key = event.function.key(), read.path
            avals = [aval for aval, _ in event.arrays]
            # Calls with others have a trace of their own.
            if key not in self._found and [*map(aval_of, arrays)] == avals:
                self._found[key] = _row(value, now)

    def found(self) -> list[Row]:
        """The values that changed before a call that did not see it."""
        return list(self._found.values())


def _plain_arguments(flat: Any) -> Mapping[str, Any]:
    """The arguments that are compared by identity, whatever their attributes are."""
    arguments: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # of a class that is not built of `None`
        values = flat.structure.rebuild([None] * flat.structure.leaves.count(DYNAMIC))
        arguments |= flat.function().arguments_of(values)
    for x in tuple(arguments.values()):
        if isinstance(x, types.MethodType):  # what is jitted, and its instance
            arguments.setdefault(x.__code__.co_varnames[0], x.__self__)
    return plain_of(arguments)


def _row(value: _Value, now: Any) -> Row:
    event, new = value.event, describe_static(now)
    path, name = value.read.path, name_of(event.function)
    last = f"another {new}" if new == value.text else new
    part = part_of(
        "stale-value",
        {"path": path, "first": value.text, "last": last, "function": name},
        path=path,
        values=(value.text, new),
        line=value.read.place,
    )
    return Row(name, (part,), line_of(event) or event.function.place)
