"""Values in reports: short, and nothing of what is in an array."""

import enum
import reprlib
import types
from typing import Any

from eqx_fastjit._structure import ARRAY_TYPES

from ._table import show_type


_LENGTH = 60
_PLAIN = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis))
_CONTAINERS = (tuple, list, dict, set, frozenset)


class _Short(reprlib.Repr):
    """`repr` of builtin types, cut short; of everything else the type alone.

    The `repr` of a user's class may be long, slow, or raise.
    """

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 40
        self.maxlevel = 2

    def repr1(self, x: Any, level: int) -> str:
        if isinstance(x, ARRAY_TYPES):
            return show_type(x)
        if isinstance(x, types.FunctionType | types.BuiltinFunctionType | type):
            return f"<{type(x).__name__} {x.__qualname__}>"
        if isinstance(x, enum.Enum):
            return f"{type(x).__name__}.{x.name}"
        if type(x) in _PLAIN or type(x) in _CONTAINERS:
            return super().repr1(x, level)
        return f"<{type(x).__name__}>"


def short(x: Any) -> str:
    """A short text for a static value; never raises."""
    try:
        text = _Short().repr1(x, 2)
    except Exception:
        text = f"<{type(x).__name__}>"
    return text if len(text) <= _LENGTH else text[: _LENGTH - 3] + "..."
