"""Values that a trace has read beside its arguments, and that have changed since.

A trace keeps what its function read of globals, of variables of the function around it,
of entries of dictionaries there, and of attributes of plain objects. Calls do not see
that these change. It is a finding only if such a trace is called again.
"""

import contextlib
import itertools
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from eqx_fastjit._callables import source_of
from eqx_fastjit._engine import ENGINE
from eqx_fastjit._facts import aval_of
from eqx_fastjit._statics import has_only_identity, state_of
from eqx_fastjit._texts import describe_static

from ._events import Event
from ._reads import MISSING, Read, reads_of


# Values that are compared; anything else may change without being another one. And
# the bytes up to which an array of NumPy is, which may be written to.
_VALUES = (bool, int, float, complex, str, bytes, type(None))
_MAX_BYTES = 4096


class _Value(NamedTuple):
    """A value as it was after a trace."""

    event: Event
    read: Read
    text: str
    state: Any


class Stale(NamedTuple):
    """A value that has changed before a call that did not see it."""

    # That of the trace.
    event: Event
    read: Read
    # What the trace uses, and what it is now.
    first: str
    last: str


def _state(value: Any) -> Any:
    """What tells a value from another one; `None` if that is not known."""
    if isinstance(value, jax.Array):
        return weakref.ref(value)
    if isinstance(value, np.ndarray | np.generic):
        is_small = value.nbytes <= _MAX_BYTES and not value.dtype.hasobject
        return state_of(value) if is_small else None
    return (type(value), value) if type(value) in _VALUES else None


class StaleValues:
    """Notes what each trace has read, and whether it was called after that changed."""

    def __init__(self) -> None:
        # By what JAX traces, which is kept as long as its specialization.
        self._read = weakref.WeakKeyDictionary[Any, list[_Value]]()
        # The values that changed before a call that did not see it.
        self.found: dict[Any, Stale] = {}
        # What is being called, and those that were found for this call.
        self._called: Any = None
        self._latest: list[Any] = []

    def on_event(self, event: Event) -> None:
        """A trace is over. What it changed itself, such as a counter, is read now."""
        specialization = ENGINE.active()
        is_call = event.traced and not event.failed and event.inside is None
        if specialization is None or not is_call:
            return
        flat = specialization.flat
        if flat is self._called:  # the call has traced it again, and so sees them
            for key in self._latest:
                self.found.pop(key, None)

        avals, before = _avals(event), self._read.get(flat, ())
        values = self._read[flat] = [x for x in before if _avals(x.event) != avals]
        with contextlib.suppress(Exception):  # of what a class of the program's does
            for read in reads_of(flat.source and flat.source(), _plain_arguments(flat)):
                value = read.value()
                if (state := _state(value)) is not None:
                    values.append(_Value(event, read, describe_static(value), state))

    def on_call(self, flat: Any, arrays: Sequence[Any]) -> None:
        """What is traced as `flat` is about to be called."""
        self._called, self._latest = flat, []
        if getattr(jax.config, "jax_disable_jit", False):
            return
        for event, read, text, state in self._read.get(flat, ()):
            value, key = read.value(), (event.function.key(), read.path)
            is_array = isinstance(state, weakref.ref)
            is_same = state() is value if is_array else _state(value) == state
            if is_same or value is MISSING or key in self.found:
                continue
            if [*map(aval_of, arrays)] != _avals(event):
                continue  # for others it is traced again
            self.found[key] = Stale(event, read, text, describe_static(value))
            self._latest.append(key)


def _avals(event: Event) -> list[Any]:
    return [aval for aval, _ in event.arrays]


def _plain_arguments(flat: Any) -> dict[str, Callable[[], Any]]:
    """The arguments that are compared by identity, whatever their attributes are."""
    arguments: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # of a class that is not built of `None`
        values = flat.structure.rebuild(itertools.repeat(None))
        arguments |= flat.function().arguments_of(values)
    for x in tuple(arguments.values()):
        # Of a bound method, which may be what is jitted, its instance.
        source = source_of(x) if isinstance(x, types.MethodType) else None
        for name in source.__code__.co_varnames[:1] if source else ():
            arguments.setdefault(name, x.__self__)
    # (An object of a class with slots alone cannot be referred to weakly.)
    plain = {k: x for k, x in arguments.items() if type(x).__weakrefoffset__}
    return {k: weakref.ref(x) for k, x in plain.items() if has_only_identity(x)}
