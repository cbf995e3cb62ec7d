"""What each cause is, in a sentence, and what to do about it.

A cause has attributes, such as a ragged last batch, each with a sentence and a fix of
its own. These are in one table, `causes.toml`.
"""

import dataclasses
import functools
import importlib.resources
import re
import tomllib
from typing import Any

from eqx_fastjit._describe import Cause, Difference, Leaf
from eqx_fastjit._place import Place

from ._groups import Group
from ._records import Record, show_difference
from ._source import edit, root_of
from ._words import listed, plural, show_place, show_seconds


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
    # All leaves that differed, the first time: "`n`: 1 -> 2".
    changes: tuple[str, ...]

    def kind(self) -> str:
        """Cause and attribute."""
        plain = (self.cause, "value", "dtype", "other", "operations", "raised")
        is_plain = self.attribute in (*plain, self.cause)
        return self.cause if is_plain else f"{self.cause} ({self.attribute})"

    def title(self) -> str:
        """Cause, attribute, count and seconds."""
        cost = f"{plural(self.count, 'compilation')}, {show_seconds(self.seconds)}"
        return f"{self.kind()}: {cost}" if self.seconds else self.kind()


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
    cause, attribute = group.first.cause.value, attribute_of(group)
    if group.first.is_outside or group.first.failed:
        cause = group.first.why
    text = table()[cause][attribute]
    facts = _facts(group, attribute)
    changes = group.first.differences
    if group.first.cause is Cause.NEW_FUNCTION:
        changes = changes[1:]  # the first says that it was created again
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
        calls=group.calls,
        changes=tuple(map(show_difference, changes[:_MAX_CHANGES])),
    )


def stale_finding(
    function: str, line: Place | None, name: str, old: str, new: str
) -> Finding:
    """A global that a trace has read, and that has changed since."""
    cause = "stale global"
    text = table()[cause][cause]
    facts = {"function": function, "leaf": name, "old": old, "new": new}
    return Finding(
        cause=cause,
        attribute=cause,
        leaf=name,
        line=line,
        functions={function: 1},
        count=1,
        seconds=0.0,
        says=text["says"].format_map(facts),
        fix=text["fix"].format_map(facts),
        calls={show_place(line): 1},
        changes=(f"`{name}`: {old} -> {new}",),
    )


# --- attributes -----------------------------------------------------------------------

_NUMBER = re.compile(r"(numpy\.)?(bool|int|float|complex)\d*")
_CONTAINERS = {"list", "dict", "set", "tuple", "frozenset"}


def attribute_of(group: Group) -> str:
    """What is special about a group of this cause."""
    d = group.main
    if group.first.is_outside:
        return "jax.jit" if group.first.place else "operations"
    if group.first.failed:
        return "raised"
    if group.first.cause is Cause.NEW_FUNCTION:
        return "first call" if d is None else "created again"
    if group.first.cause is Cause.CONFIGURATION:
        return "caches cleared" if d is None else "setting"
    assert d is not None  # or the caches were cleared
    if group.first.cause is Cause.STATIC:
        return _static_attribute(d)
    if group.first.cause is Cause.STRUCTURE:
        return _structure_attribute(group, d)
    if group.first.cause is Cause.SHAPE:
        return "ragged batch" if _is_ragged(group) else "lengths"
    if group.first.cause is Cause.DTYPE:
        return _dtype_attribute(d)
    return "committed" if d.what == "committed" else "moved"


def _static_attribute(d: Difference) -> str:
    if d.old and d.new and d.old.kind == d.new.kind and d.new.dtype:
        return "array"
    if d.what in ("function", "object"):
        return f"{d.what} created again"
    old, new = d.old, d.new
    if old is None or new is None:
        return "value"
    if "array" in (old.kind, new.kind):
        number = old if new.kind == "array" else new
        return "number and array" if _NUMBER.fullmatch(number.type) else "value"
    numbers = _NUMBER.fullmatch(old.type), _NUMBER.fullmatch(new.type)
    if numbers[0] and numbers[1]:
        if numbers[0][2] != numbers[1][2]:
            return "type"
        if numbers[0][2] == "bool":  # a flag, which decides what is traced
            return "value"
        return "number of a configuration" if new.of else "number"
    return "container" if old.type == new.type and new.type in _CONTAINERS else "value"


def _structure_attribute(group: Group, d: Difference) -> str:
    types = {
        leaf.type for d in group.of_leaf(d.path) for leaf in (d.old, d.new) if leaf
    }
    if d.old is None or d.new is None:
        return "absent"
    if "NoneType" in types:
        return "optional"
    is_sequence = types <= {"list", "tuple"} and d.old.size != d.new.size
    return "grows" if is_sequence else "other"


def _is_ragged(group: Group) -> bool:
    """Whether there is one smaller batch, along axis 0 of all arrays that differ."""
    found = [d for r in group.whole for d in r.differences if d.what == "shape"]
    shapes = [(d.old.shape, d.new.shape) for d in found if d.old and d.new]
    lengths = {(old[:1], new[:1]) for old, new in shapes}
    is_one = len(lengths) == 1 and all(old > new for old, new in lengths)
    return is_one and all(old[1:] == new[1:] for old, new in shapes)


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


def _facts(group: Group, attribute: str) -> dict[str, Any]:
    """All that the table's sentences can name."""
    first, d = group.first, group.main
    old, new = (d.old, d.new) if d else (None, None)
    before = (first.earlier or (None,))[0]
    here = f"the later call, at {show_place(first.line)}"
    earlier = f"the earlier call, at {show_place(before)}"
    # The odd one is the call that passes a number, or what was made of one.
    is_number = old is not None and old.kind == "static"
    is_odd = new is not None and (
        new.kind == "static" or (new.weak_type and not is_number)
    )
    names = [f"`{name}` ({plural(n, 'time')})" for name, n in group.functions.items()]
    return {
        "function": first.function.rpartition(".")[2],
        "defined": f", at {show_place(first.place)}" if first.place else "",
        "leaf": group.leaf,
        "argument": root_of(group.leaf),
        # `filter_shard` takes all leaves of a model; `device_put` also NumPy arrays.
        "put": "eqx.filter_shard" if "." in group.leaf else "jax.device_put",
        "new": new,
        "values": _values(group),
        "old": old,
        "below": _below(first),
        "odd_at": here if is_odd else earlier,
        "other_at": earlier if is_odd else here,
        "edit": _edit(group, attribute),
        "extra": f"{plural(len(group.whole), 'more compilation')} "
        f"({show_seconds(group.seconds)})",
        "cache": _CACHE,
        "n_programs": plural(len(group.records), "program"),
        "names": listed(names),
    }


def _values(group: Group) -> str:
    """What the leaf was, in order, each value once."""
    found = group.of_leaf(group.leaf)
    values = [*(d.old for d in found[:1]), *(d.new for d in found)]
    return listed(_value(group, leaf) for leaf in values)


def _value(group: Group, leaf: Leaf | None) -> str:
    if leaf is None:
        return "nothing"
    if group.first.cause is Cause.PLACEMENT:
        return leaf.sharding or "on no device"
    if group.first.cause is Cause.STATIC and leaf.kind == "static":
        kinds = {x.type for d in group.of_leaf(leaf.path) for x in (d.old, d.new) if x}
        is_clear = len(kinds) == 1 or leaf.class_name in leaf.text
        return leaf.text if is_clear else f"{leaf.text} ({leaf.class_name})"
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
    if attribute == "number":
        text = edit(first, first.frames, d.path, None)
    elif attribute == "number and array":
        site = first.frames if d.new.kind == "static" else first.earlier
        array = d.old if d.old.kind == "array" else d.new
        dtype = None if array.weak_type else array.dtype
        text = edit(first, site, d.path, dtype)
    elif attribute in ("weak type", "becomes float"):
        site = first.frames if d.new.weak_type else first.earlier
        text = edit(first, site, d.path, d.new.dtype)
    else:
        return ""
    alike = [
        f"`{x.path}`"
        for x in first.differences
        if x.what == d.what and x.path != d.path and x.old and x.new
        if (x.old.kind, x.old.type) == (d.old.kind, d.old.type)
        if (x.new.kind, x.new.type) == (d.new.kind, d.new.type)
    ]
    return f"{text}The same goes for {listed(alike, 3)}. " if alike else text
