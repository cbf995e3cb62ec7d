"""A call in words: what each leaf of its arguments was, without holding on to any.

Written down whenever something is traced or compiled, so that a later call can be
compared with it. Leaves hold shapes, dtypes, types and short texts. No `__repr__` of a
static is called: it may be slow, and it may print what nobody wants in a report.
Nothing here raises because of a user's class.
"""

import contextlib
import enum
import functools
import itertools
import re
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.tree_util as jtu

from eqx_fastjit._facts import (
    aval_of,
    current_settings,
    Place,
    placement_of,
    SETTINGS,
)
from eqx_fastjit._statics import has_only_identity, is_array
from eqx_fastjit._texts import describe_static, show_array
from eqx_fastjit._trails import known_reader, static_key


# Fields of statics, of a call in all.
_MAX_FIELDS = 200
# The earlier events that a new one is compared with.
_MAX_COMPARED = 32


class Cause(enum.StrEnum):
    """Why something was traced or compiled. The most important is first."""

    NEW_FUNCTION = "new function"
    CONFIGURATION = "configuration"
    STRUCTURE = "structure"
    DTYPE = "dtype"
    # The length of an array often is a static as well, and changes because that does.
    SHAPE = "shape"
    STATIC = "static"
    PLACEMENT = "placement"


_RANKS = {cause: rank for rank, cause in enumerate(Cause)}


class Leaf(NamedTuple):
    """An array, a static, or a node of the arguments of a call."""

    # As the user would write it: `model.layers[1].weight`; or the name of a setting.
    path: str
    # "array", "static", "structure" (of a node) or "configuration" (a setting).
    kind: str
    # `float32[8,4]`; of anything else a short text.
    text: str
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
    # Of a field of another static, such as a configuration: the class of that.
    of: str = ""
    # Of a node: whether it is an `equinox.Module`.
    is_module: bool = False

    def __str__(self) -> str:
        return self.text


class Difference(NamedTuple):
    """One leaf that differs between two calls: in what, and so the cause that it is."""

    path: str
    cause: Cause
    # `None` where the leaf is in the other call only.
    old: Leaf | None
    new: Leaf | None

    @property
    def looks_same(self) -> bool:
        """Whether texts do not show it: another object, a weak type, a placement."""
        old, new = self.old, self.new
        if old is None or new is None:
            return False
        return (old.type, old.text) == (new.type, new.text)


class Reason(NamedTuple):
    """Why an event happened."""

    cause: Cause = Cause.NEW_FUNCTION
    # The most important first. There is none for the first call of a function, and for
    # one of which JAX's caches were cleared.
    differences: tuple[Difference, ...] = ()
    # The user's lines that led to the event that it differs from, innermost first. Of a
    # first call, those of the same function before its cell was run again.
    earlier: tuple[Place, ...] = ()


def is_below(path: str, node: str) -> bool:
    """Whether a path leads into the node at another path."""
    return path.startswith((f"{node}.", f"{node}[", f"{node}<"))


# What a path ends with: a field, an entry, or what has no name.
_LAST = re.compile(r"(\.\w+|\[[^\[\]]*\]|\['(?:[^'\\]|\\.)*'\]|<[^<>]*>)$")


def parent(path: str) -> str:
    """The path of what something is in; empty for an argument."""
    found = _LAST.search(path)
    return path[: found.start()] if found else ""


# --- leaves ---------------------------------------------------------------------------


class _Part(NamedTuple):
    """What a call is described by: an argument, or something in one."""

    path: str
    value: Any
    # Whether it is static for where it stands, whatever it is.
    is_static: bool = False
    # The class of the static that it is a field of.
    of: str = ""


def describe(
    arguments: list[tuple[str, Any]],
    avals: Mapping[int, tuple[Any, Any]] | None = None,
    settings: Iterable[Any] = (),
    function: tuple[str, Any] | None = None,
) -> tuple[Leaf, ...]:
    """The leaves, nodes and static fields of a call, in order, and JAX's settings.

    **Arguments:**

    - `arguments`: name and value of each argument, as the user would write them. There
        may be tracers in place of arrays.
    - `avals`: the aval and the placement of each array, by the `id` of what stands for
        it.
    - `settings`: those of JAX at the time of the call. By default, those of now.
    - `function`: its name, and itself, unless it is an argument.
    """
    out: list[Leaf] = []
    n_fields = 0
    # An explicit stack: trees may be deeper than Python's limit.
    pending = [_Part(name, value) for name, value in reversed(arguments)]
    if function is not None:
        pending = [*reversed(_captured(_Part(*function))), *pending]
    while pending:
        part = pending.pop()
        if is_array(part.value, abstract=True) and not part.is_static:
            known = (avals or {}).get(id(part.value))
            own = known or (aval_of(part.value), placement_of(part.value))
            out.append(_array(part.path, *own))
            continue
        is_node, inside = _inside(part)
        if is_node:
            out.append(_node(part, len(inside)))
        else:
            out.append(_static(part, bool(inside)))
            inside = inside[: _MAX_FIELDS - n_fields]
            n_fields += len(inside)
        pending.extend(reversed(inside))
    texts = map(str, settings or current_settings())
    return (*out, *map(Leaf, SETTINGS, itertools.repeat("configuration"), texts))


def _array(path: str, x: Any, placement: Any) -> Leaf:
    dtype = _dtype_text(x.dtype)
    weak_type = getattr(x, "weak_type", False)  # a key has none
    text = show_array(x.shape, dtype)
    sharding = _sharding_text(placement)
    return Leaf(path, "array", text, x.shape, dtype, weak_type, sharding)


_dtype_text: Callable[[Any], str] = functools.lru_cache(maxsize=256)(str)


@functools.lru_cache(maxsize=256)
def _sharding_text(sharding: Any) -> str | None:
    if sharding is None:
        return ""
    if sharding == "traced":
        return None
    if isinstance(sharding, jax.sharding.SingleDeviceSharding):
        (device,) = sharding.device_set
        return str(device)
    if isinstance(sharding, jax.sharding.NamedSharding):
        return f"{sharding.spec} over {dict(sharding.mesh.shape)}"
    return str(sharding)


def _inside(part: _Part) -> tuple[bool, list[_Part]]:
    """Whether it is a node, and what is in it, static fields and options included."""
    x = part.value
    if type(x) in _ATOMS:
        return False, []
    try:
        reader = known_reader(x)
        is_node = reader.is_node and not part.is_static
        n_dynamic = reader.n_dynamic if is_node else 0
        names = vars(x) if reader.name in ("hashed", "state") else reader.names
        values = {f".{name}": getattr(x, name, None) for name in names}
        if type(x) is dict and not is_node:
            values = {f"[{k!r}]": v for k, v in x.items() if type(k) is str}
        elif _is_plain(part):  # it may hold anything, such as a large list
            values = {f".{k}": v for k, v in vars(x).items() if type(v) in _SIMPLE}
        elif is_node and not names:
            pairs, tree = jtu.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)
            values = {jtu.keystr(keys): value for keys, value in pairs}
            n_dynamic = len(values)
            _, aux = tree.node_data()
            if reader.name == "node" and aux is not None:
                values["<static>"] = aux
    except Exception:  # of the class's own flatten function, or it has no `__dict__`
        return False, []
    if not is_node and (captured := _captured(part)):
        return False, captured
    of = "" if is_node else type(x).__qualname__
    return is_node, [
        _Part(part.path + name, value, i >= n_dynamic, of)
        for i, (name, value) in enumerate(values.items())
    ]


def _is_plain(part: _Part) -> bool:
    """Whether it is an object that only equals itself, in no other static."""
    x = part.value
    library = type(x).__module__.partition(".")[0]
    if part.of or isinstance(x, _OTHERS) or library in _LIBRARIES:
        return False
    return has_only_identity(x) and hasattr(x, "__dict__")


# Statics with nothing in them, which type, text and hash tell apart.
_ATOMS = {bool, int, float, str}

# Of `jax.jit`.
_JITTED: Any = type(jax.jit(lambda: None))
# What is no plain object of a program's.
_OTHERS = (
    *(type, enum.Enum, types.ModuleType),
    *(types.FunctionType, types.MethodType, functools.partial, _JITTED),
)
_LIBRARIES = {"jax", "jaxlib", "equinox"}
# What is described of its attributes.
_SIMPLE = {bool, int, float, complex, str, type(None), types.FunctionType}
# Of what wraps a function, as `functools.wraps` has it.
WRAPPED = ".__wrapped__"
# Their closures are those of what they wrap.
_WRAPPERS = ("partial", _JITTED.__qualname__)


def _captured(part: _Part) -> list[_Part]:
    """What a function wraps, or what its closure refers to."""
    x, values = part.value, dict[str, Any]()
    of = getattr(type(x), "__qualname__", "")
    if type(x) is functools.partial:
        values = {".func": x.func} | {f".args[{i}]": y for i, y in enumerate(x.args)}
        values |= {f".keywords[{k!r}]": y for k, y in x.keywords.items()}
    elif type(x) is _JITTED:
        values = {WRAPPED: x.__wrapped__}
    elif type(x) is types.FunctionType and "__wrapped__" in vars(x):
        values = {WRAPPED: vars(x)["__wrapped__"]}
    elif type(x) is types.FunctionType and (
        part.of in ("", *_WRAPPERS) or part.path.endswith(WRAPPED)
    ):
        with contextlib.suppress(ValueError):  # a cell is empty
            cells = zip(x.__code__.co_freevars, x.__closure__ or (), strict=False)
            values = {f"<{name}>": cell.cell_contents for name, cell in cells}
    if part.of == "function" and not part.path.endswith(WRAPPED):
        return []  # of what is captured, no more
    return [_Part(part.path + name, y, True, of) for name, y in values.items()]


def _type_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")


def _node(part: _Part, size: int) -> Leaf:
    cls = type(part.value)
    text = "None" if part.value is None else cls.__qualname__
    text += f" of {size}" if size else ""
    is_module = issubclass(cls, eqx.Module)
    return Leaf(part.path, "structure", text, type=_type_name(cls), is_module=is_module)


# Of functions. A new one may have the `id` of another one that is gone.
_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_counter = itertools.count(1)


def number_of(x: Any) -> int:
    """What distinguishes a function from all others, whenever these were there."""
    try:
        return _numbers.setdefault(x, next(_counter))
    except Exception:  # it cannot be referred to weakly, or its class has an odd `==`
        return id(x)


def _static(part: _Part, has_fields: bool) -> Leaf:
    x = part.value
    try:
        if type(x) is types.FunctionType:
            identity = number_of(x)
        elif type(x) in _ATOMS and x == x:
            identity = hash(x)
        else:
            # What is within a static is told apart by its fields, and by the whole.
            identity = 0 if part.of and has_fields else hash(static_key(x))
    except Exception:  # of the class's own hash, say
        identity = id(x)
    return Leaf(
        part.path,
        "static",
        describe_static(x),
        dtype=str(getattr(x, "dtype", "")) if is_array(x, abstract=True) else "",
        type=_type_name(type(x)),
        identity=identity,
        of=part.of,
    )


# --- what differs ---------------------------------------------------------------------


def compare(
    event: Any,
    history: Sequence[Any],
    signature_of: Callable[[Any], tuple[Leaf, ...]] = attrgetter("signature"),
) -> Reason | None:
    """Why an event happened, against the earlier one that it differs least from.

    `None` if it differs from earlier ones, and the arguments are gone, of these or of
    this one.

    **Arguments:**

    - `history`: earlier events, or facts, the newest last.
    - `signature_of`: gives the signature of one, which is empty if it is gone.
    """
    alike = list(itertools.islice(_alike(event, history), _MAX_COMPARED))
    own = [old for old in alike if old.function.number == event.function.number]
    known = [old for old in own or alike if signature_of(old)]
    is_known = bool(known and event.signature)
    if own and not is_known:
        return None
    found, earlier = [], ()
    if is_known:
        nearest = min(  # of several, the newest
            known, key=lambda old: _n_changed(signature_of(old), event.signature)
        )
        found = differences(signature_of(nearest), event.signature)
        earlier = nearest.frames
    if not own:
        if not alike:
            return Reason()
        if all(old.cell != event.cell for old in alike):
            return Reason(earlier=alike[0].frames)  # the cell was run again
        # The line that made this function has made another one before.
        found.insert(0, Difference(event.function.name, Cause.NEW_FUNCTION, None, None))
        earlier = earlier or alike[0].frames
    cause = found[0].cause if found else Cause.CONFIGURATION
    return Reason(cause, tuple(found), earlier)


def shared(event: Any) -> object:
    """The same for events of which the first could have spared the others."""
    # Two lines that jit a class, say, are two functions. JAX shares nothing that is
    # compiled between stages and calls.
    line = event.frames[:1] if event.function.place is None else ()
    return event.function.key(), line, event.ahead


def _alike(event: Any, history: Sequence[Any]) -> Iterator[Any]:
    """The earlier events that could have spared this one, the newest first."""
    key = shared(event)
    for old in reversed(history):
        # A part of another function has spared no compilation.
        is_less = event.compile and not old.compile
        if not (old.failed or is_less) and shared(old) == key:
            yield old


def differences(old: tuple[Leaf, ...], new: tuple[Leaf, ...]) -> list[Difference]:
    """Each leaf that differs between two calls, the most important first."""
    # Most leaves of two calls of one function are the same objects.
    pairs = [(a, b) for a, b in itertools.zip_longest(old, new) if a is not b]
    before = _by_path(a for a, _ in pairs if a is not None)
    after = _by_path(b for _, b in pairs if b is not None)
    everything = functools.cache(lambda: [*map(_by_path, (old, new))])
    out: list[Difference] = []
    told: list[str] = []  # everything below these
    # In the order of the new call; what is gone comes last.
    for path in dict.fromkeys([*after, *before]):
        a, b = before.get(path), after.get(path)
        if a == b or any(is_below(path, node) for node in told):
            continue
        if any(x is not None and x.of and _is_same(x, *everything()) for x in (a, b)):
            continue  # it was changed in place, and nobody looks at it
        if (cause := _cause(a, b)) is not None:
            out.append(Difference(path, cause, a, b))
        if a is None or b is None or a.kind == "structure" or a.type != b.type:
            told.append(path)
    # Not statics that are others because of a field, which is there as well.
    fields = [d.path for d in out if any(leaf and leaf.of for leaf in (d.old, d.new))]
    out = [d for d in out if not any(is_below(f, d.path) for f in fields)]
    return sorted(out, key=lambda d: (d.looks_same, _RANKS[d.cause]))


def _by_path(leaves: Iterable[Leaf]) -> dict[str, Leaf]:
    return {leaf.path: leaf for leaf in leaves}


def _is_same(
    field: Leaf, before: Mapping[str, Leaf], after: Mapping[str, Leaf]
) -> bool:
    """Whether the static object that a field is in is the same in both calls."""
    path = field.path
    while path := parent(path):
        owner = before.get(path)
        if owner is not None and not owner.of:
            return owner == after.get(path)
    return False


def _n_changed(old: tuple[Leaf, ...], new: tuple[Leaf, ...]) -> int:
    """How many leaves would have to change, for two calls to be alike.

    Below another structure these are all, in the larger of the two.
    """
    total = 0
    for path, _, a, b in differences(old, new):
        is_node = any(x is None or x.kind == "structure" for x in (a, b))
        counts = (_n_leaves(x, path) for x in (old, new)) if is_node else (1,)
        total += max(1, *counts)
    return total


def _n_leaves(signature: Iterable[Leaf], path: str) -> int:
    leaves = (x for x in signature if x.kind in ("array", "static") and not x.of)
    return sum(x.path == path or is_below(x.path, path) for x in leaves)


def _cause(a: Leaf | None, b: Leaf | None) -> Cause | None:
    """The most important way in which two leaves of a path differ, if they do."""
    kinds = [leaf.kind for leaf in (a, b) if leaf is not None]
    # An array that was a number, or a static that was None, is no other structure; nor
    # is a configuration with another option.
    if "static" in kinds:
        return Cause.STATIC
    if a is None or b is None or a.kind != b.kind:
        return Cause.STRUCTURE
    if b.kind != "array":
        return Cause(b.kind)
    if a.dtype == b.dtype and a.shape != b.shape:
        return Cause.SHAPE
    if (a.dtype, a.weak_type) != (b.dtype, b.weak_type):
        return Cause.DTYPE
    # A tracer does not say.
    is_known = a.sharding is not None and b.sharding is not None
    return Cause.PLACEMENT if is_known else None
