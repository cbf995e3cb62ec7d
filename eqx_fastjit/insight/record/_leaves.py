"""Leaves: what an argument of a call, or something in one, was; and paths to them."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from eqx_fastjit._facts import Place


class Leaf(NamedTuple):
    """An array, a static, or a node of the arguments of a call."""

    # As the user would write it: `model.layers[1].weight`; or the name of a setting.
    path: str
    # "array", "static", "structure" (of a node) or "configuration" (a setting).
    kind: str
    # `float32[8,4]`; of anything else a short text.
    text: str
    # Of all but a setting: "number", "label" (a string, a flag, `None` or a member of
    # an enumeration), "function", "container", "array", "module", "optimiser" or
    # "object" (anything else).
    category: str = ""
    # Of a number, unless it is complex, not finite, or of 64 bits or more.
    value: int | float | None = None
    # Of a node: how many elements it has.
    size: int = 0
    # Of an array, also of one that is static.
    shape: tuple[Any, ...] = ()
    dtype: str = ""
    weak_type: bool = False
    # Where an array is committed to: empty if JAX may place it; `None` of a tracer.
    sharding: str | None = ""
    # Of a static or a node: its class, with the module.
    type: str = ""
    # Of a static: distinguishes values with equal texts.
    identity: int = 0
    # Of a part of another static, such as a configuration: the class of that, and its
    # category.
    of: str = ""
    holder: str = ""
    # Of a static that is a function of the user's: where it was defined.
    place: Place | None = None

    def __str__(self) -> str:
        return self.text

    def for_json(self) -> dict[str, Any]:
        """Most of it is as usual, and absent."""
        usual = self._field_defaults
        return {k: v for k, v in self._asdict().items() if v != usual.get(k)}


def is_below(path: str, node: str) -> bool:
    """Whether a path leads into the node at another path."""
    return path.startswith((f"{node}.", f"{node}[", f"{node}<"))


# In a path: a field, or an entry. And what one ends with: that, or what has no name.
FIELD = re.compile(r"\.\w+|\['(?:[^'\\]|\\.)*'\]|\[[^\[\]]*\]")
_LAST = re.compile(rf"({FIELD.pattern}|<[^<>]*>)$")


def parent(path: str) -> str:
    """The path of what something is in; empty for an argument."""
    found = _LAST.search(path)
    return path[: found.start()] if found else ""


def ancestors(path: str) -> Iterator[str]:
    """The paths of all that something is in, the innermost first."""
    while path := parent(path):
        yield path


def argument_of(path: str) -> str:
    """The argument that a path begins with: `batch` of `batch['x'][0]`."""
    return re.split(r"(?<=.)[.\[<]", path, maxsplit=1)[0]  # of `<lambda>`, all


def common(paths: list[str]) -> str:
    """The path of the innermost object that all are in, or that they are."""
    around = (paths[0], *ancestors(paths[0]))
    found = (x for x in around if all(y == x or is_below(y, x) for y in paths))
    return next(found, paths[0])  # of several arguments, the first
