"""The contract as a program: the engine in plain Python, of which no speed is promised.

It has the names of `_native`, and runs where that could not be built, or where
`EQX_FASTJIT_ENGINE=python` asks for it. The tests compare the two. `_statics.py` says
what is the same, and which reader a type has; `csrc/` has the same readers in C.
"""

import struct
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax.tree_util as jtu
import numpy as np

from ._blocking import COPIED_BYTES
from ._private import instance_dict
from ._statics import flatten_one_level, Reader, reader_of


class _Same:
    """On a trail: this very object."""

    __slots__ = ("object",)

    def __init__(self, x: Any):
        self.object = x

    def __eq__(self, other: Any) -> bool:
        return type(other) is _Same and self.object is other.object

    def __hash__(self) -> int:
        return id(self.object)  # which this holds


_ARRAY = _Same("array")


class _Mutable(NamedTuple):
    """A static that can be changed in place, and where its state is on the trail."""

    object: Any
    start: int
    stop: int


class Walk:
    """Reads values: their arrays, and all else onto a trail."""

    def __init__(
        self, values: Iterable[Any], as_static: bool = False, abstract: bool = False
    ):
        self.abstract = abstract
        self.trail: list[Any] = []
        self.arrays: list[Any] = []
        self.mutables: list[_Mutable] = []
        self.numpy_bytes = 0  # of the arrays that the caller may write to
        self._in_mutable = 0
        self._parts(values, as_static)

    def _parts(self, parts: Iterable[Any], as_static: bool) -> None:
        for part in parts:
            self.read(part, as_static)

    def read(self, x: Any, as_static: bool) -> None:
        """Read a value. Below a static, arrays are static, too."""
        reader = _reader(x)
        as_static = as_static or not reader.is_node
        read = getattr(self, f"_{reader.name}")
        if as_static and reader.is_mutable:
            self._mutable(read, reader, x)
        else:
            read(reader, x, as_static)

    def _mutable(self, read: Any, reader: Reader, x: Any) -> None:
        """Read a static that can be changed in place."""
        if self._in_mutable:
            return read(reader, x, True)
        number, start = len(self.mutables), len(self.trail)
        self.mutables.append(_Mutable(x, start, start))
        self._in_mutable += 1
        read(reader, x, True)
        self._in_mutable -= 1
        self.mutables[number] = _Mutable(x, start, len(self.trail))

    def _node_of(self, cls: type, n: int) -> None:
        self.trail += [_Same(cls), n]

    # --- arrays ---

    def _array(self, reader: Reader, x: Any, as_static: bool) -> None:
        self.trail.append(_Same(x) if as_static else _ARRAY)
        if not as_static:
            self.arrays.append(x)

    _tracer = _array

    def _scalar(self, reader: Reader, x: Any, as_static: bool) -> None:
        (self._state if as_static else self._array)(reader, x, as_static)

    def _numpy(self, reader: Reader, x: Any, as_static: bool) -> None:
        self.numpy_bytes += 0 if as_static else x.nbytes
        self._scalar(reader, x, as_static)

    def _struct(self, reader: Reader, x: Any, as_static: bool) -> None:
        traced = self.abstract and not as_static
        (self._array if traced else self._hashed)(reader, x, as_static)

    # --- containers ---

    def _tuple(self, reader: Reader, x: Any, as_static: bool) -> None:
        self._node_of(type(x), len(x))
        self._parts(list(tuple.__iter__(x)), as_static)

    def _list(self, reader: Reader, x: Any, as_static: bool) -> None:
        self._node_of(list, len(x))
        self._parts(list(x), as_static)

    def _dict(self, reader: Reader, x: Any, as_static: bool) -> None:
        # As a node, in JAX's order; as a static, in the order that the function sees.
        values, keys = (x.values(), x) if as_static else flatten_one_level(x)
        pairs = list(zip(keys, values, strict=True))
        self._node_of(dict, len(pairs))
        for key, value in pairs:
            self.read(key, True)
            self.read(value, as_static)

    def _node(self, reader: Reader, x: Any, as_static: bool) -> None:
        children, aux = flatten_one_level(x)
        children = list(children)
        self._node_of(type(x), len(children))
        self._parts(children, as_static)
        self.read(aux, True)
        if as_static and isinstance(x, dict):
            # JAX sorts a `defaultdict`; as a static, the function sees it as it is.
            for pair in x.items():
                self._parts(pair, True)

    def _module(self, reader: Reader, x: Any, as_static: bool) -> None:
        values = instance_dict(x)
        if values.keys() != set(reader.names):
            self._node_of(type(x), -1)
            return self._node(reader, x, as_static)
        self._node_of(type(x), len(values))
        for i, name in enumerate(reader.names):
            self.read(values[name], as_static or i >= reader.n_dynamic)

    # --- statics ---

    def _same(self, reader: Reader, x: Any, as_static: bool) -> None:
        self.trail.append(_Same(x))

    def _text(self, reader: Reader, x: Any, as_static: bool) -> None:
        # Tuples compare their parts by identity or `==`, and the hashes first.
        self.trail += [_Same(type(x)), (hash(x), x)]

    _int = _text

    def _hashed(self, reader: Reader, x: Any, as_static: bool) -> None:
        try:
            self._text(reader, x, as_static)
        except RecursionError:
            raise
        except Exception:  # it has no hash after all: rule 6
            self._mutable(self._state, reader, x)

    def _float(self, reader: Reader, x: Any, as_static: bool) -> None:
        self.trail += [_Same(type(x)), struct.pack("d", x)]

    def _complex(self, reader: Reader, x: Any, as_static: bool) -> None:
        self.trail += [_Same(type(x)), struct.pack("dd", x.real, x.imag)]

    def _set(self, reader: Reader, x: Any, as_static: bool) -> None:
        members = frozenset(x)
        self.trail += [_Same(type(x)), (hash(members), members)]

    def _fields(self, reader: Reader, x: Any, as_static: bool) -> None:
        self._node_of(type(x), len(reader.names))
        for name in reader.names:
            try:
                value = getattr(x, name)
            except AttributeError:
                self.trail.append(0)
            else:
                self.read(value, True)

    def _state(self, reader: Reader, x: Any, as_static: bool) -> None:
        assert reader.state is not None
        state = reader.state(x)
        if state is x:
            return self.trail.append(_Same(x))
        self.trail.append(_Same(type(x)))
        self._in_mutable += 1  # the state is new each time: nobody can change it
        self.read(state, True)
        self._in_mutable -= 1


_readers: dict[int, tuple[type, Reader]] = {}  # by the id of types that it holds


def _reader(x: Any) -> Reader:
    cls = type(x)
    known = _readers.get(id(cls))
    if known is None:
        known = _readers.setdefault(id(cls), (cls, reader_of(x)))
    return known[1]


def static_key(x: Any) -> tuple[Any, ...]:
    """What is equal of two statics that are the same by the contract, with a hash."""
    return tuple(Walk((x,), as_static=True).trail)


# --- specializations ------------------------------------------------------------------


class Specialization:
    """What is compiled for one signature of one function."""

    def __init__(self, jitted: Any, flat: Any):
        self.jitted = jitted
        self.flat = flat
        self.trail: list[Any] = []
        self.witnesses: list[_Mutable] = []

    def is_stale(self, walk: Walk) -> bool:
        """Whether a static that it was made with has been changed since."""
        if len(walk.mutables) != len(self.witnesses):
            return True  # an object has been given another class
        for then, current in zip(self.witnesses, walk.mutables, strict=True):
            if then.object is not current.object:
                now = Walk((then.object,), as_static=True)
                if now.trail != self.trail[then.start : then.stop]:
                    return True
        return False


class Table:
    """The specializations of one function, by signature."""

    def __init__(self, capacity: int):
        self._capacity = capacity
        self._items: dict[tuple[Any, ...], Specialization] = {}

    def find(
        self, values: tuple[Any, ...], abstract: bool
    ) -> tuple[Any, tuple[Any, ...], bool]:
        """The specialization for bound values, if there is one, and their arrays.

        And whether any array is the user's own, of NumPy.
        """
        walk = Walk(values, abstract=abstract)
        found = self._items.get(tuple(walk.trail))
        if found is not None and found.is_stale(walk):
            self.remove(found)
            found = None
        # JAX does not always copy an array of NumPy, and the caller may write to it
        # before the device is done. So it is copied, if all of them are small; else the
        # call blocks.
        if walk.numpy_bytes > COPIED_BYTES:
            return found, tuple(walk.arrays), True
        arrays = [x.copy() if isinstance(x, np.ndarray) else x for x in walk.arrays]
        return found, tuple(arrays), False

    def add(self, values: tuple[Any, ...], abstract: bool, added: Any) -> None:
        """Keep one for such values. A table that is full is emptied."""
        walk = Walk(values, abstract=abstract)
        added.trail, added.witnesses = walk.trail, walk.mutables
        if len(self._items) == self._capacity:
            self._items.clear()
        self._items[tuple(walk.trail)] = added

    def remove(self, specialization: Any) -> None:
        """Drop one, if it is in the table."""
        for key, other in list(self._items.items()):
            if other is specialization:
                self._items.pop(key, None)

    def clear(self) -> None:
        """Drop all."""
        self._items.clear()


# --- results --------------------------------------------------------------------------


class Plan:
    """How to build the result of one trace."""

    def __init__(self, root: Any, structure: Any):
        self.structure = structure
        self.blocks = -1

    def build(self, arrays: Sequence[Any]) -> Any:
        """The result, from its arrays."""
        return self.structure.rebuild(arrays)


# --- calls ----------------------------------------------------------------------------


class _Here(threading.local):
    active: Any = None
    noted = False


_here = _Here()


def active() -> Any:
    """The specialization that this thread is calling."""
    return _here.active


def set_active(specialization: Any) -> Any:
    """Set that one. Returns the one that was."""
    outer, _here.active = _here.active, specialization
    return outer


def note() -> None:
    """Have its call come to `Function.finished`."""
    _here.noted = True


def setup(*_: Any) -> None:
    """What the native engine needs of Python."""


def split_output(out: Any) -> tuple[list[Any], Any]:
    """The arrays, and the handle, of what a compiled function returned."""
    if type(out) is list:
        return out[:-1], out[-1]
    tree, handle = out
    return jtu.tree_leaves(tree), handle


class Callable:
    """The base class of jitted functions."""

    __slots__ = ("_function", "_table")

    def _prepare(self, function: Any, table: Table, *_: Any) -> None:
        object.__setattr__(self, "_function", function)
        object.__setattr__(self, "_table", table)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        function = self._function
        values = self._bind(*args, **kwargs)  # pyright: ignore
        try:
            specialization, arrays, reads_numpy = self._table.find(values, False)
            if specialization is None:
                specialization = function.specialize(values)
                self._table.add(values, False, specialization)
        except Exception as e:
            raise function.failed(None, e, values)  # noqa: B904
        outer = set_active(specialization)
        try:
            results, handle = split_output(specialization.jitted(*arrays))
            plan = handle.plan()
            is_new, _here.noted = _here.noted or plan.blocks < 0, False
            function.finished(
                specialization, plan, values, arrays, results, is_new, reads_numpy
            )
            return plan.build(results)
        except BaseException as e:
            raise function.failed(specialization, e, values)  # noqa: B904
        finally:
            set_active(outer)
