"""Arguments in a few words, for errors and for `insight`.

No `__repr__` of a user's class is called: it may be slow, and it may print what nobody
wants in a report.
"""

import contextlib
import enum
import functools
import os
import reprlib
import types
from typing import Any, NamedTuple

import jax
import jax.tree_util as jtu
import numpy as np

from ._reference import static_key
from ._statics import is_array, reader_of


_MAX_TEXT = 60


def show_array(shape: tuple[Any, ...], dtype: str) -> str:
    """`float32[8,4]`."""
    return f"{dtype}[{','.join(map(str, shape))}]"


# Types whose own `repr` is short.
_PLAIN = (types.NoneType, bool, float, complex, range, types.EllipsisType)


class _Words(reprlib.Repr):
    """Containers, numbers and strings as `repr` has them, but short."""

    repr_bytes = reprlib.Repr.repr_str

    def repr_instance(self, x: Any, level: int) -> str:
        """Anything else, by its type or its name."""
        cls = type(x)
        if cls in _PLAIN or isinstance(x, np.generic | np.dtype):
            return repr(x)
        if is_array(x, abstract=True):
            return show_array(x.shape, str(x.dtype))
        if isinstance(x, types.FunctionType | types.MethodType):
            code = x.__code__
            place = f" ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
            name, room = x.__qualname__, max(0, _MAX_TEXT - len(place))
            # The end of it tells most.
            return (name if len(name) <= room else f"...{name[3 - room :]}") + place
        if isinstance(x, enum.Enum):
            return f"{cls.__qualname__}.{x.name}"
        if isinstance(x, functools.partial):
            return f"partial of {self.repr1(x.func, level)}"
        name = getattr(x, "__qualname__", None)  # of a class, or of `jax.nn.relu`
        return name if isinstance(name, str) else f"<{cls.__qualname__}>"


_words = _Words()


def describe_static(x: Any) -> str:
    """A static value in about 60 characters at most. Never raises."""
    try:
        text = _words.repr(x)
    except Exception:  # of an object that lies about its type, say
        text = f"<{type(x).__qualname__}>"
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


# --- for errors -----------------------------------------------------------------------


class Part(NamedTuple):
    """A part of the arguments of a call, as it was then."""

    text: str
    # What tells it from others.
    key: Any


def parts_of(arguments: list[tuple[str, Any]]) -> dict[str, Part]:
    """Each argument, and all that is in them, by path. Arrays are all alike.

    Ends early if a class of the user's raises an exception.
    """
    out: dict[str, Part] = {}
    pending = [(path, x, False) for path, x in reversed(arguments)]
    with contextlib.suppress(Exception):
        while pending:
            path, x, as_static = pending.pop()
            out[path], inside = _part(x, as_static)
            pending += [(path + p, y, static) for p, y, static in reversed(inside)]
    return out


def _part(x: Any, as_static: bool) -> tuple[Part, list[tuple[str, Any, bool]]]:
    """A value, and what is directly in it: path, value, and whether it is static."""
    reader = reader_of(x)
    as_static = as_static or not reader.is_node
    if is_array(x, abstract=True) and not as_static:
        return Part(describe_static(x), jax.Array), []
    if x is None or not (reader.names or reader.is_node) or is_array(x, abstract=True):
        return Part(describe_static(x), static_key(x)), []
    inside = _inside(x, reader.names)
    n_dynamic = reader.n_dynamic if reader.names else len(inside)
    cls, n = type(x), len(inside)
    found = [(p, y, as_static or i >= n_dynamic) for i, (p, y) in enumerate(inside)]
    return Part(f"{cls.__qualname__} of {n}", (cls, n)), found


def _inside(x: Any, names: tuple[str, ...]) -> list[tuple[str, Any]]:
    """The fields of a value, or the children of a node."""
    if names:
        return [(f".{name}", getattr(x, name, None)) for name in names]
    pairs: list[Any] = jtu.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)[0]
    return [(jtu.keystr(keys), child) for keys, child in pairs]
