"""What each cause is, in a sentence, and what to do about it.

A cause has attributes, such as a ragged last batch, each with a sentence and a fix of
its own. These are in one table, `causes.toml`.
"""

import ast
import dataclasses
import functools
import importlib.resources
import re
import tomllib
from collections.abc import Callable
from typing import NamedTuple

from eqx_fastjit._describe import Cause, Difference, FUNCTIONS, Leaf
from eqx_fastjit._place import Place

from ._groups import Group
from ._records import Record
from ._source import find_assignment, find_call, find_item, find_keyword, without_cast
from ._words import listed, plural, show_chain, show_place, show_seconds, times


class Change(NamedTuple):
    """A leaf that differs between two calls, in words."""

    path: str
    what: str
    old: str
    new: str


@dataclasses.dataclass(frozen=True)
class Finding:
    """A group of compilations in words: what it cost, why, and what to do."""

    # One of the seven, or "outside of filter_jit".
    cause: str
    # What is special about it, such as "ragged batch".
    attribute: str
    leaf: str
    line: Place | None
    # Names of the functions that were compiled, and how often.
    functions: dict[str, int]
    count: int
    seconds: float
    says: str
    fix: str
    # Function and the user's lines that led to it, and how often.
    calls: dict[str, int]
    # All leaves that differed, the first time.
    changes: tuple[Change, ...]

    def kind(self) -> str:
        """Cause and attribute."""
        plain = (self.cause, "value", "dtype", "other", "operations", "raised")
        is_plain = self.attribute in plain
        return self.cause if is_plain else f"{self.cause} ({self.attribute})"

    def title(self) -> str:
        """Cause, attribute, count and seconds."""
        cost = f"{plural(self.count, 'compilation')}, {show_seconds(self.seconds)}"
        return self.kind() if self.cause == STALE else f"{self.kind()}: {cost}"


STALE = "stale global"
_MAX_CHANGES = 100

_CACHE = (
    "JAX's persistent cache (`JAX_COMPILATION_CACHE_DIR`) keeps what was compiled for "
    "later runs."
)


@functools.cache
def table() -> dict[str, dict[str, dict[str, str]]]:
    """By cause and attribute: what happened (`says`), and the `fix`."""
    file = importlib.resources.files("eqx_fastjit.insight") / "causes.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def finding_of(group: Group) -> Finding:
    """A group in words."""
    cause, attribute = group.cause.value, attribute_of(group)
    if group.is_outside or group.first.failed:
        cause = group.first.why
    text = table()[cause][attribute]
    facts = _facts(group, attribute)
    changes = [
        Change(d.path, d.what, str(d.old or "nothing"), str(d.new or "nothing"))
        for d in group.first.differences
        if d.what != "function" or d.cause is not Cause.NEW_FUNCTION
    ]
    return Finding(
        cause=cause,
        attribute=attribute,
        leaf=group.leaf,
        line=group.line,
        functions=group.functions,
        count=len(group.whole),
        seconds=group.seconds,
        says=text["says"].format_map(facts),
        fix=text["fix"].format_map(facts),
        calls={
            f"`{function}` at {show_chain(frames)}"
            if function
            else show_chain(frames): n
            for (function, frames), n in group.calls.items()
        },
        changes=tuple(changes[:_MAX_CHANGES]),
    )


# --- attributes -----------------------------------------------------------------------

_KINDS = {
    "bool": "bool",
    "int": "int",
    "float": "float",
    "complex": "complex",
    "numpy.float64": "float",
    "numpy.float32": "float",
    "numpy.int64": "int",
    "numpy.int32": "int",
}
_CONTAINERS = {"list", "dict", "set", "tuple", "frozenset"}


def attribute_of(group: Group) -> str:
    """What is special about a group of this cause."""
    d = group.main
    if group.is_outside or group.first.failed:
        return "operations" if group.is_outside else "raised"
    if group.cause is Cause.NEW_FUNCTION:
        return "first call" if d is None else "made anew"
    if group.cause is Cause.CONFIGURATION:
        return "caches cleared" if d is None else "setting"
    assert d is not None  # or the caches were cleared
    if group.cause is Cause.STATIC:
        return _static_attribute(d)
    if group.cause is Cause.STRUCTURE:
        return _structure_attribute(group, d)
    if group.cause is Cause.SHAPE:
        return "ragged batch" if _is_ragged(group) else "lengths"
    if group.cause is Cause.DTYPE:
        return _dtype_attribute(d)
    return "committed" if d.what == "committed" else "moved"


def _static_attribute(d: Difference) -> str:
    if d.what in ("function", "object"):
        return f"{d.what} made anew"
    old, new = d.old, d.new
    if old is None or new is None:
        return "value"
    if "array" in (old.kind, new.kind):
        number = old if new.kind == "array" else new
        return "number and array" if number.type in _KINDS else "value"
    kinds = _KINDS.get(old.type), _KINDS.get(new.type)
    if None not in kinds:
        if kinds[0] != kinds[1]:
            return "type"
        if kinds[0] == "bool":  # a flag, which decides what is traced
            return "value"
        return "number of a configuration" if new.of else "number"
    if old.type == new.type == "str":
        return "text"
    if old.type in FUNCTIONS and old.text == new.text:
        return "function made anew"
    return "container" if old.type == new.type and new.type in _CONTAINERS else "value"


def _structure_attribute(group: Group, d: Difference) -> str:
    types = {
        leaf.type for d in group.of_leaf(d.path) for leaf in (d.old, d.new) if leaf
    }
    if d.old is None or d.new is None:
        return "absent"
    if "NoneType" in types:
        return "optional"
    if types <= {"list", "tuple"}:
        return "grows"
    return "keys" if types == {"dict"} else "other"


def _is_ragged(group: Group) -> bool:
    """Whether there is one smaller batch, along axis 0 of all arrays that differ."""
    lengths: set[tuple[int, int]] = set()
    for r in group.whole:
        for d in r.differences:
            if d.what != "shape":
                continue
            if not (d.old and d.new and d.old.shape and d.new.shape):
                return False
            if d.old.shape[1:] != d.new.shape[1:]:
                return False
            lengths.add((d.old.shape[0], d.new.shape[0]))
    return len(lengths) == 1 and all(old > new for old, new in lengths)


def _dtype_attribute(d: Difference) -> str:
    if d.what == "weak type":
        return "weak type"
    assert d.old is not None and d.new is not None
    old, new = d.old.dtype, d.new.dtype
    if old.startswith("key<") or new.startswith("key<"):
        return "keys"
    whole = ("bool", "int", "uint")
    becomes = old.startswith(whole) and not new.startswith(whole)
    return "becomes float" if becomes else "dtype"


# --- facts ----------------------------------------------------------------------------


def _facts(group: Group, attribute: str) -> dict[str, str]:
    """All that the table's sentences can name."""
    first, d = group.first, group.main
    old, new = (d.old, d.new) if d else (None, None)
    before = (first.earlier or (None,))[0]
    here = f"the later call, at {show_place(first.line)}"
    earlier = f"the earlier call, at {show_place(before)}"
    is_weak = new is not None and new.weak_type
    is_number = new is not None and new.kind == "static"
    names = [f"`{name}` ({times(n)})" for name, n in group.functions.items()]
    return {
        "function": first.function.rpartition(".")[2],
        "defined": f", at {show_place(first.place)}" if first.place else "",
        "leaf": group.leaf,
        "argument": re.split(r"[.\[<]", group.leaf, maxsplit=1)[0],
        "asarray": f"jnp.asarray({group.leaf})",
        "new": str(new),
        "new_type": new.type if new else "",
        "new_value": str(new),
        "new_dtype": new.dtype if new else "",
        "of": new.of if new else "",
        "values": _values(group),
        "lengths": f"{old.shape[0]}, then {new.shape[0]}"
        if old and new and old.shape and new.shape
        else "",
        "below": _below(first),
        "weak_at": here if is_weak else earlier,
        "strong_at": earlier if is_weak else here,
        "number_at": here if is_number else earlier,
        "array_at": earlier if is_number else here,
        "edit": _edit(group, attribute),
        "extra": f"{plural(len(group.whole), 'compilation')}, "
        f"{show_seconds(group.seconds)},",
        "cache": _CACHE,
        "n_programs": plural(len(group.records), "program"),
        "were": "was" if len(group.records) == 1 else "were",
        "names": listed(names),
    }


def _values(group: Group) -> str:
    """What the leaf was, in order, each value once."""
    found = group.of_leaf(group.leaf)
    values = [leaf for d in found[:1] for leaf in (d.old,)] + [d.new for d in found]
    texts = [_value(group, leaf) for leaf in values]
    return listed(texts)


def _value(group: Group, leaf: Leaf | None) -> str:
    if leaf is None:
        return "nothing"
    if group.cause is Cause.PLACEMENT:
        return leaf.sharding or "on no device"
    if group.cause is Cause.STATIC and leaf.kind == "static":
        kinds = {x.type for d in group.of_leaf(leaf.path) for x in (d.old, d.new) if x}
        return leaf.text if len(kinds) == 1 else f"{leaf.text} ({leaf.class_name})"
    return str(leaf)


def _below(record: Record) -> str:
    """The first leaf that one of the two calls has and the other has not."""
    paths = [d.path for d in record.differences[1:] if d.old is None or d.new is None]
    return f"; `{paths[0]}` is in one of them only" if paths else ""


# --- edits of the user's own line -----------------------------------------------------


def _edit(group: Group, attribute: str) -> str:
    """What to write in place of the user's own line, with a space after it."""
    first, d = group.first, group.main
    if d is None or d.old is None or d.new is None:
        return ""
    earlier = (first.earlier or (None,))[0]
    also = _also(first, d)
    if attribute == "number":
        return _in_place(first, first.line, d, _asarray(None), at_origin=False) + also
    if attribute == "number and array":
        site = first.line if d.new.kind == "static" else earlier
        array = d.old if d.old.kind == "array" else d.new
        dtype = None if array.weak_type else array.dtype
        return _in_place(first, site, d, _asarray(dtype), at_origin=False)
    if attribute == "weak type":
        site = first.line if d.new.weak_type else earlier
        return _in_place(first, site, d, _asarray(d.new.dtype), at_origin=True) + also
    if attribute == "becomes float":
        where = _in_place(first, earlier, d, _asarray(d.new.dtype), at_origin=True)
        return where + also
    return ""


def _also(record: Record, main: Difference) -> str:
    """The leaves that need the same edit."""
    alike = [
        f"`{d.path}`"
        for d in record.differences
        if d.what == main.what and d.path != main.path and d.old and d.new
        if (d.old.kind, d.new.kind) == (main.old.kind, main.new.kind)  # pyright: ignore
        if (d.old.type, d.new.type) == (main.old.type, main.new.type)  # pyright: ignore
    ]
    return f"The same goes for {listed(alike, 3)}. " if alike else ""


def _asarray(dtype: str | None) -> Callable[[str], str]:
    cast = "" if dtype is None else f", dtype=jnp.{dtype}"
    return lambda text: f"jnp.asarray({text}{cast})"


def _in_place(
    record: Record,
    site: Place | None,
    d: Difference,
    wrap: Callable[[str], str],
    *,
    at_origin: bool,
) -> str:
    """The edit of a leaf at a line, or where its variable was assigned."""
    name = record.function.rpartition(".")[2]
    call = find_call(site, name, record.place)
    root = re.split(r"[.\[<]", d.path, maxsplit=1)[0]
    passed = call.arguments.get(root) if call else None
    if call is None or passed is None or site is None:
        return f"Write `{wrap(d.path)}` for `{d.path}`, called at {show_place(site)}. "
    if root != d.path:
        path = ast.unparse(passed) + d.path.removeprefix(root)
        item = find_item(site, path) or find_keyword(record.frames, path)
        if item is None:
            where = show_place(record.frames[-1])
            return (
                f"Write `{wrap(path)}` where it is created, for the call at {where}. "
            )
        line = Place(site.file, item.lineno, "")
        text = wrap(without_cast(item))
        return f"Write `{text}` for `{path}` in {show_place(line)}. "
    text = ast.unparse(passed)
    made = find_assignment(site, text) if at_origin and text.isidentifier() else None
    if made is not None:
        line = Place(site.file, made.lineno, "")
        return (
            f"Write `{text} = {wrap(without_cast(made.value))}` in {show_place(line)}. "
        )
    edited = call.edited(root, wrap(without_cast(passed)))
    return f"Write `{edited}` in {show_place(site)}. "
