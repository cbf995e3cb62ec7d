"""Stand-ins for values, to find out later whether a value is still the same."""

# Values are anybody's: of what `isinstance` tells of them the rest is unknown.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import hashlib
import types
import weakref
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from eqx_fastjit._describe import describe_static
from eqx_fastjit._static_keys import static_key


# Larger containers are compared by their identity and length; of larger NumPy arrays
# and strings only a sample counts.
_MAX_ITEMS = 100
_MAX_BYTES = 1 << 16

_ATOMS = (int, float, complex, bool, type(None), type(Ellipsis), np.generic)
_CONTAINERS = (tuple, list, dict, set, frozenset)
_SETTINGS = (*_ATOMS, str, bytes, np.ndarray, *_CONTAINERS)


class _Same:
    """Stands for an object by its identity, and does not keep it alive."""

    __slots__ = ("id", "ref")

    def __init__(self, value: Any):
        self.id = id(value)
        try:
            self.ref: Any = weakref.ref(value)
        except TypeError:
            self.ref = None

    def __eq__(self, other: object) -> bool:
        if type(other) is not _Same or self.id != other.id:
            return False
        # Where an object died, another one may have its address.
        return self.ref is None or self.ref() is not None

    __hash__ = None  # pyright: ignore


class _Budget:
    """How many more items may be looked at."""

    def __init__(self) -> None:
        self.items = _MAX_ITEMS


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def stand_in(x: Any, budget: _Budget) -> Any:
    """Something that is equal later on if, and only if, the value is the same.

    For large values: if they are the same as far as was looked.
    """
    cls = type(x)
    budget.items -= 1
    if isinstance(x, _ATOMS):
        return static_key(x)
    if isinstance(x, str | bytes):
        if len(x) <= _MAX_BYTES:
            data = x if isinstance(x, bytes) else x.encode(errors="surrogatepass")
            return (cls, x if len(x) <= 64 else _digest(data))
        return (cls, len(x), x[:64], x[-64:], _Same(x))
    if isinstance(x, np.ndarray):
        return (cls, x.shape, str(x.dtype), _array_contents(x))
    if cls in _CONTAINERS:
        if budget.items < len(x):
            return (cls, len(x), _Same(x))
        if isinstance(x, dict):
            items = [*x.keys(), *x.values()]
        elif isinstance(x, set | frozenset):
            # In an order that does not depend on how the set was made.
            items = sorted(x, key=lambda v: (type(v).__name__, hash(v)))
        else:
            items = list(x)
        return (cls, [stand_in(v, budget) for v in items])
    return (cls.__qualname__, _Same(x))


def _array_contents(x: np.ndarray) -> Any:
    if x.dtype.hasobject:
        return _Same(x)
    step = max(1, x.nbytes // _MAX_BYTES)
    return _digest(x.flat[::step].tobytes())


class Value(NamedTuple):
    """A value as it was."""

    stand_in: Any
    shown: str
    # Of an object or module: those attributes that the code may read.
    attributes: dict[str, "Value"]


def is_plain_object(x: Any) -> bool:
    """An object that keeps settings: attributes that may be set, in a `__dict__`."""
    if callable(x) or isinstance(x, eqx.Module | jax.Array):
        return False
    return isinstance(getattr(x, "__dict__", None), dict)


def value_of(x: Any, names: frozenset[str], *, with_attributes: bool = True) -> Value:
    """A value as it is now, with those attributes that have one of these names."""
    attributes = {}
    if with_attributes and is_plain_object(x):
        found = vars(x)
        for name in names & found.keys():
            part = found[name]
            # A module has functions and classes of its own: only settings count.
            if not isinstance(x, types.ModuleType) or isinstance(part, _SETTINGS):
                attributes[name] = value_of(part, names, with_attributes=False)
    return Value(stand_in(x, _Budget()), describe_static(x), attributes)


def is_identity(value: Value) -> bool:
    """Whether it is an object that is compared by its identity."""
    return type(value.stand_in) is tuple and type(value.stand_in[-1]) is _Same
