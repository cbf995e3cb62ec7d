"""What differs between two traces of a function, and what to do about it."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from eqx_fastjit._describe import Entry, FUNCTIONS, is_below
from eqx_fastjit._record import Trace


class Difference(NamedTuple):
    """One difference between two calls."""

    # As the user would write it: `model.layers[1].weight`; or the name of a setting.
    path: str
    # "shape", "dtype", "weak_type", "sharding", "committed", "structure", "config",
    # "static" for another value or type, "function" and "object" for another object
    # that looks the same.
    what: str
    old: str
    new: str
    # Of an array, in the new call; of one that is a number in the other call, if it is
    # not weakly typed.
    dtype: str = ""
    # Of a field of a static, such as a configuration: the class.
    of: str = ""

    def __str__(self) -> str:
        if self.what in ("function", "object"):
            return f"`{self.path}`: another {self.what} that looks the same, {self.new}"
        what = {"weak_type": "weakly typed", "config": ""}.get(self.what, self.what)
        return f"`{self.path}`: {what + ' ' * bool(what)}{self.old} -> {self.new}"


# The kinds of cause, by what differs. The most important is first.
KINDS = {
    "config": "config-churn",
    "structure": "structure-churn",
    "static": "static-churn",
    "function": "fresh-function",
    "object": "static-churn",
    "dtype": "dtype-churn",
    "shape": "shape-churn",
    "weak_type": "weak-type",
    "sharding": "sharding-churn",
    "committed": "sharding-churn",
}

# Of shapes that vary. Padding alone changes results: it is read as data.
FIX_SHAPES = (
    "Drop the ragged last batch, or fix the length. Or accept the compilations, and "
    "let JAX keep them (`jax_compilation_cache_dir`)."
)
PADDING = (
    "Padding keeps results only if you also pass the true length, as an array, and "
    "mask or index by it wherever the axis is read: otherwise a sum or a mean takes "
    "the padding for data, and `x[-1]` is padding. Under BatchNorm, only dropping the "
    "batch is right."
)

ADVICE = {
    "structure-churn": (
        "Keep the pytree structure of the arguments the same: fill in None "
        "consistently, give dictionaries the same keys and lists the same length. (If "
        "you fill up a list, mask what you added.)"
    ),
    "static-churn": (
        "Everything that is not an array is static, and each new value recompiles. "
        "Pass numbers that change as arrays (`jnp.asarray(x)`), and keep the type of "
        "those that stay."
    ),
    "fresh-function": (
        "Each new function object (a lambda, closure or partial) is traced again. "
        "Create and wrap it once, outside of the loop, and pass what changes as an "
        "argument."
    ),
    "dtype-churn": "Give the argument the same dtype in each call.",
    "shape-churn": f"Each new shape recompiles. {FIX_SHAPES} {PADDING}",
    "weak-type": (
        "A weakly typed array comes from a Python number (`jnp.asarray(1.0)`, `x + 1`) "
        "and becomes strong after the first step. Give the initial value a dtype: "
        "`jnp.asarray(1.0, dtype=jnp.float32)`."
    ),
    "sharding-churn": (
        "Put the argument where it will stay (`jax.device_put`) before the first call, "
        "or fix `in_shardings` and `out_shardings`."
    ),
    "config-churn": "Change JAX's configuration once, before the first call.",
    "cache-cleared": (
        "Nothing in the call differs: the caches were cleared (`jax.clear_caches()`, "
        "`eqx.clear_caches()`, `f.clear_cache()`), or the function has more than "
        "4,096 specializations, and the oldest were dropped."
    ),
    "first-call": "The first call of a function is traced and compiled.",
}

# What JAX makes of NumPy's dtypes, unless `jax_enable_x64` is set.
_NARROW = {
    "float64": "float32",
    "int64": "int32",
    "uint64": "uint32",
    "complex128": "complex64",
}

# Of static-churn, if each object looks the same.
NEW_OBJECT = (
    "An object that is no pytree is static, and each new one recompiles, unless it is "
    "equal to an earlier one. Create it once. Or make its class an `eqx.Module`, or "
    "one that has `__eq__` and `__hash__`, such as a frozen dataclass."
)

# Of static-churn, if each text is another one.
NEW_TEXT = (
    "A text is static, and each new one recompiles. Leave texts that the function does "
    "not need, such as names of files, out of its arguments."
)


def key_advice(old: str, new: str) -> str | None:
    """Advice for two kinds of keys, which cannot be cast to each other."""
    if not (old.startswith("key<") or new.startswith("key<")):
        return None
    if old.startswith("key<") and new.startswith("key<"):
        return (
            f"Create all keys with one implementation (`{old}` and `{new}` were "
            "passed): `jax.random.key(seed, impl=...)`."
        )
    return (
        "Create all keys in one way: `jax.random.key(seed)` creates typed keys, "
        "`jax.random.PRNGKey(seed)` arrays of uint32. `jax.random.wrap_key_data` "
        "turns such an array into a typed key."
    )


def origin(trace: Trace) -> str:
    """What a trace was made for. Only traces of the same kind can be compared.

    "call"; "inlined" into another function, which is compiled as a whole; "transformed"
    by `jax.grad` or the like outside of any jitted function; "ahead" of time.
    """
    if trace.inlined:
        return "inlined"
    if trace.ahead:
        return "ahead"
    return "transformed" if trace.transformed else "call"


def differences(old: Trace, new: Trace) -> list[Difference]:
    """Each difference between two traces, in the order of the arguments."""
    same = set(old.entries) & set(new.entries)
    before = {e.path: e for e in old.entries if e not in same}
    after = {e.path: e for e in new.entries if e not in same}
    out: list[Difference] = []
    structural: list[str] = []
    # In the order of the new call; what is gone comes last.
    for path in dict.fromkeys([*after, *before]):
        if any(is_below(path, p) for p in structural):
            continue  # told already, at the node above
        for d in _between(path, before.get(path), after.get(path)):
            if d.what == "structure":
                structural.append(path)
                d = d._replace(new=d.new + _changes_below(path, before, after))
            elif d.what == "static" and _types(path, before) != _types(path, after):
                structural.append(path)  # its fields are others
            elif d.what == "dtype" and _as_traced(d.old, old) == _as_traced(d.new, new):
                continue  # the same to JAX
            out.append(d)
    # Not statics that are others because of a field, which is there as well.
    fields = [d.path for d in out if d.of]
    out = [d for d in out if not any(is_below(f, d.path) for f in fields)]
    was, now = dict(old.config), dict(new.config)
    for name in dict.fromkeys([*was, *now]):
        pair = was.get(name, "unset"), now.get(name, "unset")
        if pair[0] != pair[1]:
            out.append(Difference(name, "config", *pair))
    return out


def _as_traced(dtype: str, trace: Trace) -> str:
    """The dtype that an array of NumPy's has in a trace."""
    is_wide = dict(trace.config).get("jax_enable_x64") == "True"
    return dtype if is_wide else _NARROW.get(dtype, dtype)


def _types(path: str, entries: dict[str, Entry]) -> str | None:
    entry = entries.get(path)
    return None if entry is None else dict(entry.facets).get("type")


def _changes_below(node: str, before: dict[str, Entry], after: dict[str, Entry]) -> str:
    """What was added and removed below a node, in words."""
    if node not in before or node not in after:
        return ""
    parts: list[str] = []
    for verb, there, elsewhere in (("new", after, before), ("gone", before, after)):
        paths: list[str] = []
        for path in there:
            is_new = is_below(path, node) and path not in elsewhere
            if is_new and not any(is_below(path, p) for p in paths):
                paths.append(path)
        if paths:
            more = f" and {len(paths) - 1} more" if paths[1:] else ""
            parts.append(f"{verb}: `{paths[0]}`{more}")
    return f" ({'; '.join(parts)})" if parts else ""


def _between(path: str, old: Entry | None, new: Entry | None) -> Iterable[Difference]:
    if old is None or new is None or old.kind != new.kind:
        # An array that was a number, or a static that was None, is no other structure.
        kinds = {e.kind for e in (old, new) if e is not None}
        same = old is not None and new is not None and "static" in kinds
        # Nor is a configuration with another option.
        of = next((v for e in (new, old) if e for k, v in e.facets if k == "of"), "")
        what = "static" if same or of else "structure"
        dtype = _strong_dtype(old) or _strong_dtype(new)
        yield Difference(path, what, _summary(old), _summary(new), dtype, of)
        return
    before, after = dict(old.facets), dict(new.facets)
    if new.kind == "node":
        yield Difference(path, "structure", _summary(old), _summary(new))
    elif new.kind == "static":
        if (before["type"], before["value"]) != (after["type"], after["value"]):
            what = "static"
        else:
            what = "function" if after["type"] in FUNCTIONS else "object"
        of = after.get("of", "")
        yield Difference(path, what, _summary(old), _summary(new), of=of)
    else:
        yield from _array_differences(path, before, after)


def _strong_dtype(entry: Entry | None) -> str:
    """The dtype of an array that is not weakly typed."""
    facets = dict(entry.facets) if entry is not None and entry.kind == "array" else {}
    return facets["dtype"] if facets.get("weak_type") == "False" else ""


def _array_differences(
    path: str, before: dict[str, str], after: dict[str, str]
) -> Iterable[Difference]:
    for name in ("shape", "dtype", "weak_type"):
        if before[name] != after[name]:
            yield Difference(path, name, before[name], after[name], after["dtype"])
    # What is not on a device is put where it is needed.
    was, now = before.get("sharding"), after.get("sharding")
    if "traced" in (was, now):
        return
    if was is not None and now is not None and was != now:
        yield Difference(path, "sharding", was, now)
    was, now = before.get("committed", "False"), after.get("committed", "False")
    if was != now:
        yield Difference(path, "committed", was, now)


def _summary(entry: Entry | None) -> str:
    if entry is None:
        return "nothing"
    facets = dict(entry.facets)
    if entry.kind == "array":
        return f"{facets['dtype']}{facets['shape']}"
    if entry.kind == "static":
        return f"{facets['value']} ({facets['type']})"
    if facets["type"] == "NoneType":
        return "None"
    return f"{facets['type']} of {facets['size']}"


_LENGTHS = re.compile(r"\d+")


def main_difference(found: Sequence[Difference]) -> Difference | None:
    """The first of the most important differences."""
    order = list(KINDS)
    # Old and new length of each axis that has changed, as static numbers are shown.
    lengths = {
        (f"{old} (int)", f"{new} (int)")
        for d in found
        if d.what == "shape"
        for old, new in zip(*map(_LENGTHS.findall, (d.old, d.new)), strict=False)
    }

    def rank(d: Difference) -> tuple[int, bool]:
        # A static number that is the length of an array changes because that does.
        follows = d.what == "static" and (d.old, d.new) in lengths
        return order.index("shape" if follows else d.what), follows

    return min(found, key=rank, default=None)


def nearest(
    new: Trace, earlier: Iterable[Trace]
) -> tuple[Trace, list[Difference]] | None:
    """The earlier trace that differs least, and the latest of several such."""
    best, least = None, (0, 0)
    for old in earlier:
        if old.failed or old is new:
            continue
        found = differences(old, new)
        distance = _distance(old, new, found), len(found)
        if best is None or distance <= least:
            best, least = (old, found), distance
    return best


def _distance(old: Trace, new: Trace, found: list[Difference]) -> int:
    """By how much two traces differ, given their differences."""
    what = {d.what for d in found}
    if not what & {"structure", "static"}:
        return len(found)
    changed = {e.path for e in set(old.entries) ^ set(new.entries)}
    if "structure" not in what:
        # A static of another type stands for its fields.
        statics = [d.path for d in found if d.what == "static"]
        return len(found) + sum(is_below(x, s) for x in changed for s in statics)
    # One of those stands for everything below the node, other changes included.
    return max(len(found), len(changed))
