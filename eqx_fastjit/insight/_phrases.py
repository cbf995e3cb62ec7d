"""What the sentences of the table of causes can name, for a root of a group."""

import itertools
import re
from typing import Any

from eqx_fastjit._facts import Place

from ._attributes import cells_of, fields_of, inner_of, is_optimiser
from ._describe import Cause, is_below, Leaf, parent, WRAPPED
from ._events import Event
from ._groups import Group
from ._programs import operations_for_each
from ._roots import argument_of, is_number, is_weak, Root
from ._source import (
    assigned_around,
    edit_to_array,
    made_by,
    set_at,
    source_line,
)
from ._why import line_of, show_placement
from ._words import listed, plural, show_place


def facts_of(group: Group, root: Root | None = None) -> dict[str, Any]:
    """All that a sentence on a group, and on a root of it, can name."""
    first = group.first
    place = first.function.place
    names = [f"`{name}` ({plural(n, 'time')})" for name, n in group.functions.items()]
    facts = {
        "function": first.function.qualname.rpartition(".")[2],
        "defined": f", at {show_place(place)}" if place else "",
        "wrapped_at": f", for the call at {show_place(group.line)}",
        "names": listed(names),
    }
    if root is None:
        return facts
    facts |= _facts(root, group.line)
    if any(x.path == root.path for x in group.roots if x is not root):
        facts["object"] = facts["leaf"]
    return facts


def _facts(root: Root, line: Place | None) -> dict[str, Any]:
    rows = root.table.rows
    before, after = _change(root, line)
    path = _leaf(root)
    leaves = rows[after].leaves
    old, new = (rows[i].leaves.get(path) for i in (before, after))
    # Of a call of which only the leaves are known, what came after it knows the lines.
    event, earlier = rows[after].event, rows[before].event
    assert event is not None
    frames = (event.reason.earlier if earlier is None else earlier.frames, event.frames)
    is_odd = _is_later_odd(old, new)
    here = f"the later call, at {show_place((frames[1] or (None,))[0])}"
    there = f"the earlier call, at {show_place((frames[0] or (None,))[0])}"
    shown, sizes = _leaves(root, path), [*root.sizes] or [0]
    facts = {
        "leaf": path,
        "argument": argument_of(path),
        "object": root.path,
        "old": old,
        "new": new,
        "whole": root.leaves[-1],
        "values": _values(root, shown),
        "owner": new.of if new is not None else "",
        "odd_at": here if is_odd else there,
        "other_at": there if is_odd else here,
        "strong": new.dtype if new is not None else "",
        "below": _below(root),
        "begin": sizes[0],
        "end": sizes[-1],
        # The last call may write one more than it was given.
        "room": sizes[-1] + max(1, sizes[-1] - sizes[-2:][0]),
        "n_sizes": len(shown),
        "axis": next((x.axis for x in root.own if x.axis >= 0), 0),
        "begins": _begins(root),
        "evidence": _evidence(root, path),
        "alike": _alike(root),
        "unrolled": _unrolled(root),
        "few": _few_programs(root, path),
        "own_class": _own_class(root, new),
        "how": _argument_how(root, line),
        "around": _around(event),
        "set_at": _set_at(root, event, path),
        "in_arrays": "" if str(leaves.get("jax_enable_x64")) == "True" else _IN_ARRAYS,
    }
    facts |= _edit(root, event, frames[is_odd], old, new) | _configuration(root)
    facts["solver"] = _solver(root, facts["code"])
    facts["model_edit"] = facts["code"] if facts["solver"] else _OWN
    facts |= _optimiser(root, event) | _placement(root) | _closure(root)
    return facts


def _change(root: Root, line: Place | None) -> tuple[int, int]:
    """Two rows in a sequence between which it changes, at this line if there are."""
    rows = root.table.rows
    here = [x for x in root.changes if (e := rows[x[1]].event) and line_of(e) == line]
    # Nothing does if caches were cleared in between.
    last = max(i for i, row in enumerate(rows) if row.event)
    return (here or root.changes or [(max(last - 1, 0), last)])[0]


def _evidence(root: Root, path: str) -> str:
    """Whether the number could be an array."""
    if root.follows != "literals":
        return _DOUBT.format(leaf=path)
    return " Only numbers differ between the traces: an array as argument is safe."


def _alike(root: Root) -> str:
    """The other arrays that have its lengths."""
    others = [f"`{x}`" for x in root.paths[1:]]
    return f" With it change {listed(others)}." if others else ""


def _unrolled(root: Root) -> str:
    """What else to do if a loop runs over the axis that differs."""
    pairs = zip(root.table.leaves(root.leaf), root.table.rows, strict=True)
    axis = max(root.own[0].axis, 0)
    events = {
        n: row.event
        for leaf, row in pairs
        if leaf is not None and row.event is not None
        for n in leaf.shape[axis : axis + 1]
        if isinstance(n, int)  # and no symbol
    }
    return _UNROLLED if operations_for_each(events) >= _LOOP else ""


def _few_programs(root: Root, path: str) -> str:
    """What to do if several values make the same program, as by an `if`."""
    events = [row.event for row in root.table.rows if row.event is not None]
    found = [e.program for e in events if e.program]
    n = len({*found})
    if not 1 < n <= len(found) // 2:
        return ""
    return (
        f" Only {n} of these programs are different: pass what the function makes of "
        f"`{path}` in its place, such as a flag. Or decide by `jnp.where` or "
        f"`jax.lax.cond`, with `{path}` as an array."
    )


_IN_ARRAYS = (
    "(In an array, numbers have 32 bits: large integers overflow, and floats are "
    "rounded before the function computes with them.)"
)


def _around(event: Event) -> str:
    """What a function that is made again reads of the loop around it."""
    names = listed(f"`{x}`" for x in assigned_around(event.function.place))
    return f": the loop assigns {names}, which it reads" if names else ""


# Operations for each element of an axis, from which a loop makes them.
_LOOP = 4
_UNROLLED = (
    " A loop over this axis is unrolled: write it as `jax.lax.scan`, or its body is "
    "compiled once for each element."
)
_OWN = "as an argument of its own"
# By the type of what wraps.
_WRAPPERS = {"PjitFunction": "jax.jit", "function": "wrapper"}
_DOUBT = (
    " If a shape, a `range`, a `length` or an `if` depends on `{leaf}`, it has to stay "
    "a number, and each value has to be compiled."
)
_OWN_CLASS = (
    " If it is of a class of your own, and all that it holds is equal each time, you "
    "can also give the class `__eq__` and `__hash__`, as a frozen dataclass has them, "
    "or make it an `eqx.Module`."
)


def _own_class(root: Root, leaf: Leaf | None) -> str:
    """What else can be done with an object that is made again, or why not."""
    if found := fields_of(root):
        shown = (f"`{x}` ({listed(map(str, root.table.leaves(x)))})" for x in found)
        return f" In it, what differs is {listed(shown, 4)}."
    return "" if "function" in str(leaf and leaf.type) else _OWN_CLASS


def _set_at(root: Root, event: Event, path: str) -> str:
    """The lines that set a field, in words."""
    owner = root.table.leaf(parent(path))
    cls = "" if owner is None else owner.type.rpartition(".")[2]
    lines = listed((show_place(x) for x in set_at(event.frames, path, cls)), 3)
    return f" It is set at {lines}." if lines else ""


def _leaf(root: Root) -> str:
    """The path that is named: that of the field, of a static object with one."""
    return (fields_of(root) or [root.leaf])[0]


def _leaves(root: Root, path: str) -> list[Leaf | None]:
    return list(dict.fromkeys(root.table.leaves(path)))


def _is_later_odd(old: Leaf | None, new: Leaf | None) -> bool:
    """Whether it is the later call that passes a number, or what was made of one."""
    if old is None or new is None:
        return False
    return new.kind == "static" or (new.weak_type and new.dtype == old.dtype)


def _values(root: Root, leaves: list[Leaf | None]) -> str:
    """What the leaf was, in order, each value once."""
    types = {x.type for x in leaves if x and x.kind == "static"}

    def show(leaf: Leaf | None) -> str:
        if leaf is None:
            return "nothing"
        if root.cause is Cause.PLACEMENT:
            return show_placement(leaf)
        # A class that is not Python's own stands in the text.
        is_clear = len(types) < 2 or leaf.kind != "static" or "." in leaf.type
        return str(leaf) if is_clear else f"{leaf} ({leaf.type})"

    return listed(map(show, leaves))


def _below(root: Root) -> str:
    """The first leaf that some calls have and others have not."""
    paths = [x.path for x in root.own if x.path != root.leaf]
    absent = [x for x in paths if None in root.table.leaves(x)]
    return f"; `{absent[0]}` is in some of them only" if absent else ""


def _begins(root: Root) -> str:
    """What a buffer is before it is one."""
    kinds = [x for x in root.copies if x.aspect == "kind"]
    texts = [str(x) for c in kinds[:1] for x in root.table.leaves(c.path)[:1] if x]
    return "".join(f", and is {text} before that" for text in texts)


def _edit(
    root: Root, event: Event, frames: Any, old: Leaf | None, new: Leaf | None
) -> dict[str, str]:
    """What to write in place of the user's own line."""
    if old is None or new is None:
        return {"code": "", "edit": ""}
    array = new if new.kind == "array" else old
    # That of the other call; of an array that was made of a number, no dtype.
    was_number = array.weak_type and root.cause is Cause.STATIC
    dtype = None if was_number or array.kind != "array" else array.dtype
    owner = root.table.leaf(parent(root.leaf))
    types = {x.type for x in root.leaves if x is not None and x.kind == "static"}
    # Where an `int` comes first, arrays would have two dtypes.
    pattern = "float({})" if types == {"int", "float"} else "{}"
    code, text = edit_to_array(event, frames, root.leaf, dtype, owner, pattern)
    others = [f"`{x}`" for x in root.paths[1:]]
    unless = ""
    if is_weak(root.table, root.own[0]):
        unless = f", unless it is computed from `{root.leaf}`"
    same = f"The same goes for {listed(others, 3)}{unless}. " if others else ""
    return {"code": code, "edit": text + same}


def _solver(root: Root, code: str) -> str:
    """What is enough for a Module that nothing can differentiate."""
    argument = argument_of(root.leaf)
    leaves = root.table.rows[-1].leaves.values()
    if any(x.kind == "array" and is_below(x.path, argument) for x in leaves):
        return ""
    return (
        f"`{argument}` has no arrays. If nothing differentiates it, nor optimises it, "
        f"and the field is not static: write `{code}` where it is made. Otherwise: "
    )


def _configuration(root: Root) -> dict[str, str]:
    """The fields of a static object, and which of them can be arrays."""
    changes = {x: root.table.leaves(x) for x in fields_of(root) or root.paths}
    numbers = [k for k, v in changes.items() if all(map(is_number, filter(None, v)))]
    others = [f"`{x}`" for x in changes if x not in numbers]
    shown = (f"`{k}` is {listed(map(str, v))}" for k, v in changes.items())
    return {
        "each": listed((f"`{x}`" for x in changes), 8),
        "changes": "; ".join(list(shown)[:8]),
        "arrays": listed(
            (f"`{_FIELD.sub('', x)}=jnp.asarray(...)`" for x in numbers), 8
        ),
        "fixed": f" Keep {listed(others)} the same." if others else "",
    }


# What comes before the last field of a path.
_FIELD = re.compile(r".*[.\[](?=\w)")


_INJECT = (
    "Where its learning rate changes: `{object} = optax.inject_hyperparams({factory})"
    "(learning_rate=first)`, made once, with the first rate, and in its state, which "
    "`{object}.init` makes, "
    '`state.hyperparams["learning_rate"] = jnp.asarray({rate}, jnp.float32)`. (Of '
    "a schedule, that is the value for each step: a schedule that is passed itself "
    "overwrites what is set.) Its `update` reads the dtypes of the parameters, if it "
    "is given them: pass `eqx.filter(model, eqx.is_array)`, not the model."
)


# What is not known of it.
_USUAL = {"factory": "optax.adam", "rate": "rate"}


def _optimiser(root: Root, event: Event) -> dict[str, str]:
    made = made_by(event, argument_of(root.leaf))
    facts = {**_USUAL, "object": root.path, "made": ""}
    if made is not None and made.factory.startswith("optax."):
        is_plain = made.factory != "optax.chain"
        facts["made"] = f", at {show_place(made.place)}"
        facts["factory"] = made.factory if is_plain else "make"
        facts["rate"] = made.first if is_plain else "rate"
    return facts | {"inject": _INJECT.format_map(facts)}


def _placement(root: Root) -> dict[str, str]:
    """The edit that places all of them at once."""
    table = root.table
    names = list(dict.fromkeys(argument_of(x.path) for x in root.columns))
    leaves = [table.rows[-1].leaves.get(x.path) for x in root.own]
    last = [x.sharding for x in leaves if x is not None and x.sharding]
    # `filter_shard` takes all leaves of a model; `device_put` also NumPy arrays.
    is_model = any("." in x.path for x in root.own)
    put = "eqx.filter_shard" if is_model else "jax.device_put"
    what = f"({', '.join(names)})" if len(names) > 1 else "".join(names)
    target = f"; `sharding` is that of later calls, {last[0]}" if last else ""
    return {
        "put": f"{put}({what}, sharding)",
        "target": target,
        "arguments": listed(f"`{x}`" for x in names),
    }


# In the path of what a function refers to, or a partial binds.
_CELL = re.compile(r"<\w+>|\.args\[\d+\]|\.keywords\['\w+'\]")


def _variable(root: Root, path: str) -> str:
    """The variable that a part of a closure is in; of a number, the part itself."""
    found = _CELL.search(path, len(root.leaf))
    if found is None or all(map(is_number, filter(None, root.table.leaves(path)))):
        return path
    return path[: found.end()]


def _closure(root: Root) -> dict[str, str]:
    """What differs in a function that is made again, or what does not."""
    inner = inner_of(root)
    wrapped = "" if inner is None else inner.of
    facts = {
        "inner": str(inner).partition(" (")[0].rpartition("<locals>.")[2],
        "wrapper": _WRAPPERS.get(wrapped, wrapped),
        "cells": "",
    }
    shown: list[str] = []
    passed: list[str] = []
    static: list[str] = []
    optimisers = ""
    paths = cells_of(root)[:9]
    for path in dict.fromkeys(_variable(root, x) for x in paths):
        name = re.sub(r"^\.keywords\['(\w+)'\]", r"\1", path.removeprefix(root.leaf))
        name = re.sub("[<>]", "", name.removeprefix(WRAPPED)).lstrip(".")
        values = [str(x) for x in root.table.leaves(path) if x is not None]
        differ = listed(values) if len({*values}) > 1 else f"{values[0]}, made again"
        shown.append(f"`{name}` ({differ})")
        (passed if _is_dynamic(root, path) else static).append(f"`{name}`")
        if is_optimiser(root.table.leaf(path)):
            optimisers += f" {_INJECT.format(object=name, **_USUAL)}"
    cells = ", ".join(shown)
    bound = f" What it binds is not the same: {cells}." if cells else ""
    leaves = itertools.chain(*map(root.table.leaves, paths))
    numbers = any(map(is_number, filter(None, leaves)))
    to_pass = _to_pass(passed, static, numbers or not paths) + optimisers
    return facts | {"cells": cells, "bound": bound, "to_pass": to_pass}


def _to_pass(passed: list[str], static: list[str], has_numbers: bool) -> str:
    """What to do with the variables of a function that is made again, in sentences."""
    text = ""
    if passed or not static:
        as_arrays = (
            " (a number as an array, unless shapes follow it)" if has_numbers else ""
        )
        text = f" Pass {listed(passed or ['what changes'])} as an argument{as_arrays}."
    if static:
        text += (
            f" Create {listed(static)} once as well: as an argument it is static, and "
            "each new one compiles."
        )
    return text


def _is_dynamic(root: Root, path: str) -> bool:
    """Whether a variable can be an argument: it has numbers, arrays, or is a flag."""
    inside = [
        leaf
        for row in root.table.rows
        for x, leaf in row.leaves.items()
        if x == path or is_below(x, path)
    ]
    return any(x.dtype or is_number(x) or x.type in _FLAGS for x in inside)


# Of values of which there are few, so that each may be compiled.
_FLAGS = ("bool", "str", "NoneType")


def _argument_how(root: Root, line: Place | None) -> str:
    """How something becomes an argument of a function that is made again."""
    event = root.table.rows[-1].event
    lines = (line, event and event.function.place)
    hints: list[str] = []
    if any("vmap(" in source_line(x) for x in lines):
        hints.append("Under `jax.vmap`, by position, with `in_axes=None` for it.")
    if any(_variable(root, x) != x for x in cells_of(root)):
        hints.append(
            "A model is an argument under `eqx.filter_jit`; `jax.jit` takes arrays."
        )
    return f" ({' '.join(hints)})" if hints else ""
