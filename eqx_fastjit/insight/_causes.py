"""What each cause is, in a sentence, and what to do about it.

A cause has attributes, such as a ragged last batch, each with a sentence and a fix of
its own. These are in one table, `causes.toml`.
"""

import dataclasses
import functools
import importlib.resources
import re
import tomllib
from dataclasses import field
from typing import Any

from eqx_fastjit._facts import Place

from ._describe import Cause, Difference, Leaf
from ._groups import Group
from ._source import edit, root_of
from ._why import cause_of, is_operation, show_difference, show_placement
from ._words import listed, plural, show_place, show_seconds


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that costs, in words: how much, why, what to do, and what that saves.

    A row of the report, and the details of it. A finding with several causes has a part
    for each, which is a finding, too.
    """

    # One of the seven, "failed", "outside of filter_jit" or "stale value"; or what
    # would save time.
    cause: str
    # What is special about it, such as "ragged batch"; the cause again if nothing is.
    attribute: str
    says: str
    fix: str
    # In a few words, for the row: "`optim` made again".
    what: str = ""
    # In a few words, what to write.
    edit: str = ""
    # What is true of every fix of this kind, in sentences. A report has it once.
    note: str = ""
    # What it cost, and what the edit saves of that.
    seconds: float = 0.0
    saves: float = 0.0
    # What it saves, in words, where seconds do not say it: "nothing by itself".
    gain: str = ""
    line: Place | None = None
    leaf: str = ""
    # Of compilations.
    count: int = 0
    # Names of the functions that were compiled, and how often.
    functions: dict[str, int] = field(default_factory=dict[str, int])
    # Function and the user's lines that led to it, and how often.
    calls: dict[str, int] = field(default_factory=dict[str, int])
    # All leaves that differed, the first time: "`n`: 1 -> 2".
    changes: tuple[str, ...] = ()
    parts: tuple["Finding", ...] = ()

    def kind(self) -> str:
        """Cause and attribute."""
        is_plain = self.attribute == self.cause
        return self.cause if is_plain else f"{self.cause} ({self.attribute})"

    def title(self) -> str:
        """Cause, attribute, count and seconds."""
        count = [plural(self.count, "compilation")] * (self.count > 0)
        cost = ", ".join([*count, show_seconds(self.seconds)])
        return f"{self.kind()}: {cost}" if self.seconds else self.kind()


_MAX_CHANGES = 100


@functools.cache
def table() -> dict[str, dict[str, dict[str, str]]]:
    """By cause and attribute: what happened (`says`), and the `fix`."""
    file = importlib.resources.files("eqx_fastjit.insight") / "causes.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def make_finding(
    cause: str, facts: dict[str, Any], attribute: str | None = None, **fields: Any
) -> Finding:
    """A finding in the words of the table, filled in with facts.

    The table has `says` and `fix`, and for some `what`, `edit` and `note`.
    """
    attribute = attribute or cause
    text = {k: v.format_map(facts) for k, v in table()[cause][attribute].items()}
    return Finding(cause, attribute, **{"what": cause, **text, **fields})


def finding_of(group: Group) -> Finding:
    """A group in words."""
    first, changes = group.first, group.first.reason.differences
    finding = make_finding(
        cause_of(first),
        _facts(group),
        _attribute(group),
        seconds=group.seconds,
        line=group.line,
        leaf=group.leaf,
        count=sum(not e.failed for e in group.whole),
        functions=group.functions,
        calls=group.calls,
        changes=tuple(
            show_difference(d)
            for d in changes[:_MAX_CHANGES]
            if d.cause is not Cause.NEW_FUNCTION
        ),
    )
    others = [f"`{d.path}`" for d in changes[1:]]
    others = [path for path in others if path not in finding.fix]
    if not others:
        return finding
    more = f"{finding.fix} What else differs: {listed(others, 3)}."
    return dataclasses.replace(finding, fix=more)


# --- attributes -----------------------------------------------------------------------

_NUMBER = re.compile(r"(numpy\.)?(bool|int|float|complex)\d*")
_CONTAINERS = {"list", "dict", "set", "tuple", "frozenset"}


def _attribute(group: Group) -> str | None:
    """What is special about a group of this cause."""
    first, d = group.first, group.main
    if first.failed or is_operation(first):
        return None
    if first.is_outside:
        return "jax.jit"
    if d is None:
        is_new = first.cause is Cause.NEW_FUNCTION
        return "first call" if is_new else "nothing differs"
    if first.cause is Cause.STATIC:
        return _static_attribute(d)
    if first.cause is Cause.STRUCTURE:
        return _structure_attribute(group, d)
    if first.cause is Cause.SHAPE:
        return "ragged batch" if _is_ragged(group) else "lengths"
    if first.cause is Cause.DTYPE:
        return _dtype_attribute(d)
    return "created again" if first.cause is Cause.NEW_FUNCTION else None


def _static_attribute(d: Difference) -> str | None:
    old, new = d.old, d.new
    if old is None or new is None:
        return None
    if old.kind == new.kind and new.dtype:
        return "array"
    if old.type == new.type and new.type in _CONTAINERS:
        return "container"  # whose texts may be the same: of long ones, or by order
    if d.looks_same:
        return "created again"
    if "array" in (old.kind, new.kind):
        number = old if new.kind == "array" else new
        return "number and array" if _NUMBER.fullmatch(number.type) else None
    numbers = _NUMBER.fullmatch(old.type), _NUMBER.fullmatch(new.type)
    if numbers[0] and numbers[1]:
        if numbers[0][2] != numbers[1][2]:
            return "type"
        if numbers[0][2] == "bool":  # a flag, which decides what is traced
            return None
        return "number of a configuration" if new.of else "number"
    return None


def _structure_attribute(group: Group, d: Difference) -> str | None:
    if d.old is None or d.new is None:
        return None
    types = {leaf.type for x in group.changes for leaf in (x.old, x.new) if leaf}
    if "NoneType" in types:
        return "optional"
    return "grows" if types in ({"list"}, {"tuple"}) else None


def _is_ragged(group: Group) -> bool:
    """Whether nothing differs but axis 0 of all arrays of one smaller batch."""
    if any(d.cause is not Cause.SHAPE for d in group.first.reason.differences):
        return False
    found = [
        d for e in group.whole for d in e.reason.differences if d.cause is Cause.SHAPE
    ]
    shapes = [(d.old.shape, d.new.shape) for d in found if d.old and d.new]
    lengths = {(old[:1], new[:1]) for old, new in shapes}
    if len(lengths) != 1 or any(old[1:] != new[1:] for old, new in shapes):
        return False
    (pair,) = lengths
    # An axis may be missing, and the length of an export may be a symbol.
    old, new = (length[0] if length else None for length in pair)
    return isinstance(old, int) and isinstance(new, int) and old > new


def _dtype_attribute(d: Difference) -> str | None:
    if d.looks_same:
        return "weak type"
    assert d.old is not None and d.new is not None
    old, new = d.old.dtype, d.new.dtype
    if old.startswith("key<") or new.startswith("key<"):
        return "keys"
    whole = ("bool", "int", "uint")
    becomes = old.startswith(whole) and not new.startswith(whole)
    return "becomes float" if becomes else None


# --- facts ----------------------------------------------------------------------------


def _facts(group: Group) -> dict[str, Any]:
    """All that the table's sentences can name."""
    first, d = group.first, group.main
    old, new = (d.old, d.new) if d else (None, None)
    before = (first.reason.earlier or (None,))[0]
    here = f"the later call, at {show_place(group.line)}"
    earlier = f"the earlier call, at {show_place(before)}"
    is_odd = d is not None and _is_later_odd(d)
    names = [f"`{name}` ({plural(n, 'time')})" for name, n in group.functions.items()]
    place = first.function.place
    return {
        "function": first.function.qualname.rpartition(".")[2],
        "defined": f", at {show_place(place)}" if place else "",
        "leaf": group.leaf,
        "argument": root_of(group.leaf),
        # `filter_shard` takes all leaves of a model; `device_put` also NumPy arrays.
        "put": "eqx.filter_shard" if "." in group.leaf else "jax.device_put",
        "new": new,
        "values": _values(group),
        "old": old,
        "below": _below(first.reason.differences),
        "odd_at": here if is_odd else earlier,
        "other_at": earlier if is_odd else here,
        "edit": _edit(group),
        "extra": f"{plural(len(group.whole), 'more compilation')} "
        f"({show_seconds(group.seconds)})",
        "n_programs": plural(len(group.events), "program"),
        "names": listed(names),
    }


def _is_later_odd(d: Difference) -> bool:
    """Whether it is the later call that passes a number, or what was made of one."""
    if d.old is None or d.new is None:
        return False
    return d.new.kind == "static" or (d.new.weak_type and d.new.dtype == d.old.dtype)


def _values(group: Group) -> str:
    """What the leaf was, in order, each value once."""
    found = group.changes
    leaves = [*(d.old for d in found[:1]), *(d.new for d in found)]
    types = {x.type for x in leaves if x and x.kind == "static"}

    def show(leaf: Leaf | None) -> str:
        if leaf is None:
            return "nothing"
        if group.first.cause is Cause.PLACEMENT:
            return show_placement(leaf)
        # A class that is not Python's own stands in the text.
        is_clear = len(types) < 2 or leaf.kind != "static" or "." in leaf.type
        return str(leaf) if is_clear else f"{leaf} ({leaf.type})"

    return listed(map(show, leaves))


def _below(differences: tuple[Difference, ...]) -> str:
    """The first leaf that one of the two calls has and the other has not."""
    paths = [d.path for d in differences[1:] if d.old is None or d.new is None]
    return f"; `{paths[0]}` is in one of them only" if paths else ""


def _edit(group: Group) -> str:
    """What to write in place of the user's own line, with a space after it."""
    first, d = group.first, group.main
    if d is None or d.old is None or d.new is None:
        return ""
    array = d.new if d.new.kind == "array" else d.old
    # That of the other call; of an array that was made of a number, no dtype.
    was_number = array.weak_type and d.cause is Cause.STATIC
    dtype = None if was_number or array.kind != "array" else array.dtype
    frames = first.frames if _is_later_odd(d) else first.reason.earlier
    text = edit(first, frames, d.path, dtype)
    alike = [
        f"`{x.path}`"
        for x in first.reason.differences
        if x.cause is d.cause and x.path != d.path and x.old and x.new
        if (x.old.kind, x.old.type) == (d.old.kind, d.old.type)
        if (x.new.kind, x.new.type) == (d.new.kind, d.new.type)
    ]
    return f"{text}The same goes for {listed(alike, 3)}. " if alike else text
