"""What each cause is, in a sentence, and what to do about it.

One table. A cause has attributes, such as a ragged last batch, each with a sentence and
a fix of its own. A fix keeps the program's results: where an edit could change them,
the fix says what else is needed, and names what cannot be wrong first.
"""

import ast
import dataclasses
import re
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
        is_plain = self.attribute in (self.cause, "value", "dtype", "other")
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

# By cause and attribute: what happened, and the fix.
_TABLE: dict[tuple[Cause, str], tuple[str, str]] = {
    (Cause.NEW_FUNCTION, "first call"): (
        "It was the first call of `{function}`.",
        "Nothing to mend: each function is compiled once.",
    ),
    (Cause.NEW_FUNCTION, "made anew"): (
        "`{function}` is made anew each time{defined}, and each new function is traced "
        "and compiled.",
        "Create and wrap the function once, before the loop, and pass what changes as "
        "an argument.",
    ),
    (Cause.STATIC, "number"): (
        "The Python number `{leaf}` is static, and each new value compiles: {values}.",
        "{edit}Pass an array in every call of `{function}`: one that passes a number "
        "compiles again. Where shapes, a `range` or an `if` depend on `{leaf}`, it has "
        "to stay a number, and this is its price.",
    ),
    (Cause.STATIC, "number of a configuration"): (
        "All of a configuration is static, and `{leaf}` changes: {values}.",
        "Pass `{asarray}` as an argument of its own, use that in `{function}`, and "
        "keep the {of} the same. Where shapes, a `range` or an `if` depend on the "
        "number, it has to stay static, and this is its price.",
    ),
    (Cause.STATIC, "number and array"): (
        "`{leaf}` is a number in {number_at}, and an array in {array_at}: {values}.",
        "{edit}Pass an array in every call of `{function}`.",
    ),
    (Cause.STATIC, "type"): (
        "`{leaf}` changes its type: {values}.",
        "Write the number in one way in every call of `{function}`, such as "
        "`{leaf}={new_value}`. (An `int` and a `float` give arrays of integers other "
        "dtypes, so they cannot share a trace.)",
    ),
    (Cause.STATIC, "text"): (
        "The text `{leaf}` is static, and each new one compiles: {values}.",
        "If `{function}` does not need the text, leave it out of the arguments. If it "
        "does, each text is a program of its own, and this is its price.",
    ),
    (Cause.STATIC, "function made anew"): (
        "`{leaf}` is another function in each call, though it looks the same: {new}.",
        "Create the function once, before the loop, and pass the same one. Pass what "
        "changes in it as an argument.",
    ),
    (Cause.STATIC, "object made anew"): (
        "`{leaf}` is another object in each call, though it looks the same: {new}.",
        "Create the object once. Or give its class `__eq__` and `__hash__`, as a "
        "frozen dataclass has them, or make it an `eqx.Module`.",
    ),
    (Cause.STATIC, "container"): (
        "The {new_type} `{leaf}` is static, and its contents change, in place or from "
        "call to call: {values}.",
        "Keep the contents the same. Pass what changes as an argument: numbers as "
        "arrays.",
    ),
    (Cause.STATIC, "value"): (
        "`{leaf}` is static, and each new value compiles: {values}.",
        "Each value is a program of its own. If you want them all, this is their "
        "price. If not, pass the same value in every call of `{function}`.",
    ),
    (Cause.STRUCTURE, "grows"): (
        "`{leaf}` has another number of elements each time: {values}.",
        "Pass what `{function}` needs of it, in a fixed size: a running sum and a "
        "count in place of all values, or the last few. Or call it once, after the "
        "loop.",
    ),
    (Cause.STRUCTURE, "optional"): (
        "`{leaf}` is `None` in some calls and not in others: {values}. Both programs "
        "are compiled.",
        "If both are wanted, this is the price of the second. If `None` is only the "
        "initial value, begin with the structure that later calls have, filled with "
        "what changes nothing: zeros for a sum, `-jnp.inf` for a maximum.",
    ),
    (Cause.STRUCTURE, "absent"): (
        "`{leaf}` is in some calls and not in others: {values}{below}.",
        "Pass the same parts in every call of `{function}`. Leave out those that it "
        "does not read.",
    ),
    (Cause.STRUCTURE, "keys"): (
        "`{leaf}` has other keys: {values}{below}.",
        "Give the dictionary the same keys in every call of `{function}`. Leave out "
        "those that it does not read.",
    ),
    (Cause.STRUCTURE, "other"): (
        "`{leaf}` has another structure: {values}{below}.",
        "Keep the structure of the arguments the same in every call of `{function}`.",
    ),
    (Cause.SHAPE, "ragged batch"): (
        "A batch is smaller: {lengths} along axis 0 of `{leaf}`.",
        "Leave the smaller batch out (`drop_last`, or a `range` that ends at the last "
        "whole batch), if its examples are not needed; under BatchNorm, nothing else "
        "keeps the statistics right. Or keep it: it is {extra} more, and {cache} "
        "Padding changes losses, means and BatchNorm, unless the padding is masked.",
    ),
    (Cause.SHAPE, "lengths"): (
        "`{leaf}` has several shapes, and each one compiles: {values}.",
        "If you want all these shapes, this is their price. {cache} For fewer, cut the "
        "data to one length before the call. If you pad instead, pass the true length "
        "as an array (`length=jnp.asarray(n)`), mask by it "
        "(`jnp.arange(size) < length`), and read the end at `length - 1`, not at `-1`: "
        "otherwise sums, means, recurrent states and the last element are those of the "
        "padding.",
    ),
    (Cause.DTYPE, "weak type"): (
        "`{leaf}` comes from a Python number in {weak_at}, and is weakly typed there. "
        "In {strong_at}, it is a strong {new_dtype}.",
        "{edit}Give it a dtype where it is created.",
    ),
    (Cause.DTYPE, "becomes float"): (
        "`{leaf}` begins as integers and becomes floats: {values}.",
        "{edit}Create it with the dtype that later calls have.",
    ),
    (Cause.DTYPE, "keys"): (
        "`{leaf}` is another kind of random key: {values}.",
        "Create all keys in one way, with `jax.random.key(seed)` and one `impl`. Other "
        "keys give other random numbers. `jax.random.wrap_key_data` makes a new-style "
        "key of the numbers of an old-style one, and keeps these.",
    ),
    (Cause.DTYPE, "dtype"): (
        "`{leaf}` changes its dtype: {values}.",
        "If you want each precision, this is its price. If not, create `{leaf}` with "
        "one dtype in every call of `{function}`. (A cast rounds.)",
    ),
    (Cause.PLACEMENT, "committed"): (
        "`{leaf}` is committed to a device in one call, by `jax.device_put` or as the "
        "result of one that was, and in the other it is not.",
        "Put it where it will stay, `jax.device_put({argument}, device)`, before the "
        "first call.",
    ),
    (Cause.PLACEMENT, "moved"): (
        "`{leaf}` is on other devices: {values}.",
        "Put it where it will stay (`jax.device_put({argument}, sharding)`) before the "
        "first call. Or fix `in_shardings` and `out_shardings`. If you want each "
        "device, this is its price.",
    ),
    (Cause.CONFIGURATION, "setting"): (
        "JAX's setting `{leaf}` changes: {values}.",
        "Set `{leaf}` once, before the first call. If you want both settings, this is "
        "the price of the second.",
    ),
    (Cause.CONFIGURATION, "caches cleared"): (
        "Nothing in the call differs from an earlier one. JAX had dropped what it had "
        "compiled: by `jax.clear_caches()` or `eqx.clear_caches()`, or because there "
        "were too many programs.",
        "Clear the caches only where memory is short.",
    ),
}

_OUTSIDE = (
    "{n_programs} {were} compiled outside of `filter_jit`: {names}.",
    "Operations outside of jit are a program each. Call them in one function under "
    "`eqx.filter_jit`, and they are one: `eqx.filter_jit(Model)(...)` makes a model. "
    "For a function of plain `jax.jit`, `JAX_EXPLAIN_CACHE_MISSES=1` says why.",
)

_FAILED = ("`{function}` raised while it was traced.", "See the error.")


def finding_of(group: Group) -> Finding:
    """A group in words."""
    cause = attribute = group.first.why
    if group.is_outside:
        says, fix = _OUTSIDE
    elif group.first.failed:
        says, fix = _FAILED
    else:
        cause, attribute = group.cause.value, attribute_of(group)
        says, fix = _TABLE[group.cause, attribute]
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
        count=len(group.records),
        seconds=group.seconds,
        says=says.format_map(facts),
        fix=fix.format_map(facts),
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
    for r in group.records:
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
        "extra": f"{plural(len(group.records), 'compilation')}, "
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
    if attribute == "number":
        return _in_place(first, first.line, d, _asarray(None), at_origin=False)
    if attribute == "number and array":
        site = first.line if d.new.kind == "static" else earlier
        array = d.old if d.old.kind == "array" else d.new
        dtype = None if array.weak_type else array.dtype
        return _in_place(first, site, d, _asarray(dtype), at_origin=False)
    if attribute == "weak type":
        site = first.line if d.new.weak_type else earlier
        return _in_place(first, site, d, _asarray(d.new.dtype), at_origin=True)
    if attribute == "becomes float":
        return _in_place(first, earlier, d, _asarray(d.new.dtype), at_origin=True)
    return ""


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
