"""Arguments in a few words, for errors and for `insight`.

No `__repr__` of a user's class is called: it may be slow, and it may print what nobody
wants in a report.
"""

import enum
import functools
import os
import reprlib
import types
from typing import Any

import jax.tree_util as jtu
import numpy as np

from ._statics import is_array, reader_of, Walk


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
            return _function_and_place(x)
        if isinstance(x, enum.Enum):
            return f"{cls.__qualname__}.{x.name}"
        if isinstance(x, functools.partial):
            return f"partial of {self.repr1(x.func, level)}"

        name = getattr(x, "__qualname__", None)  # of a class, or of `jax.nn.relu`
        return name if isinstance(name, str) else f"<{cls.__qualname__}>"


def _function_and_place(x: Any) -> str:
    code = x.__code__
    place = f" ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
    name, room = x.__qualname__, max(0, _MAX_TEXT - len(place))
    if len(name) > room:
        name = f"...{name[3 - room :]}"  # the end of it tells most
    return name + place


_words = _Words()


def describe_static(x: Any) -> str:
    """A static value in about 60 characters at most. Never raises."""
    try:
        text = _words.repr(x)
    except Exception:  # of an object that lies about its type, say
        text = f"<{type(x).__qualname__}>"
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


# --- for errors -----------------------------------------------------------------------


_MISSING = types.SimpleNamespace(__qualname__="missing")


def difference(then: dict[str, Any], now: dict[str, Any], path: str = "") -> str | None:
    """Where values by their paths differ first, and how, in words.

    `None` if that is not known, as of static arrays.
    """
    for key in {**then, **now}:
        old, new = then.get(key, _MISSING), now.get(key, _MISSING)
        if Walk(old, abstract=True).trail == Walk(new, abstract=True).trail:
            continue

        # In a part of it, if that can be told.
        parts, others = _parts_of(old), _parts_of(new)
        if type(old) is type(new) and parts.keys() == others.keys():
            found = difference(parts, others, path + key)
            if found is not None:
                return found

        was, text = describe_static(old), describe_static(new)
        text = "another object" if text == was else text
        return f"`{path}{key}` was {was} and is now {text}"
    return None


def _parts_of(x: Any) -> dict[str, Any]:
    """The fields of a value, or the children of a node."""
    reader = reader_of(x)
    if reader.names:
        return {f".{name}": getattr(x, name, None) for name in reader.names}
    if not reader.is_node or x is None or is_array(x, abstract=True):
        return {}
    pairs: list[Any] = jtu.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)[0]
    return {jtu.keystr(keys): child for keys, child in pairs}
