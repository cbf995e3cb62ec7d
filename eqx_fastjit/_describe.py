"""A call in words: what each leaf of its arguments was, without holding on to any.

Written down whenever something is traced or compiled, so that a later call can be
compared with it. Leaves hold shapes, dtypes, types and short texts. No `__repr__` of a
user's class is ever called: it may be slow, and it may print what nobody wants in a
report. Nothing here raises because of a user's class.
"""

import dataclasses
import enum
import functools
import inspect
import itertools
import os
import struct
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer


_MAX_TEXT = 60
_MAX_ITEMS = 6
# Of a static, levels of fields, and fields in all.
_MAX_DEPTH = 4
_MAX_FIELDS = 100
# The earlier events that a new one is compared with.
_MAX_COMPARED = 128

# JAX's settings that are part of the key of a trace.
_SETTINGS = (
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_default_matmul_precision",
    "jax_default_device",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_disable_jit",
    "jax_softmax_custom_jvp",
    "jax_random_seed_offset",
    "jax_use_direct_linearize",
    "jax_check_tracer_leaks",
    "jax_enable_checks",
    "jax_debug_key_reuse",
)

# Types of which `lambda`, `def`, `functools.partial` and methods create new objects.
FUNCTIONS = {"function", "method", "functools.partial"}


class Cause(enum.Enum):
    """Why something was traced or compiled."""

    NEW_FUNCTION = "new function"
    STATIC = "static"
    STRUCTURE = "structure"
    SHAPE = "shape"
    DTYPE = "dtype"
    PLACEMENT = "placement"
    CONFIGURATION = "configuration"


class Leaf(NamedTuple):
    """An array, a static, or a node of the arguments of a call."""

    # As the user would write it: `model.layers[1].weight`; or the name of a setting.
    path: str
    # "array", "static", "node" or "setting".
    kind: str
    # Of an array.
    shape: tuple[Any, ...] = ()
    dtype: str = ""
    weak_type: bool = False
    # Where it is: empty of one that is on no device, `None` of a tracer.
    sharding: str | None = ""
    committed: bool = False
    # Of a static or a node: its class, with the module.
    type: str = ""
    # Of a static, or of a setting.
    text: str = ""
    # Of a static: distinguishes values with equal texts.
    identity: int = 0
    # Of a node: the number of its children.
    size: int = 0
    # Of a field of another static, such as a configuration: the class of that.
    of: str = ""

    def __str__(self) -> str:
        if self.kind == "array":
            return show_array(self.shape, self.dtype)
        if self.kind == "node":
            return f"{self.class_name} of {self.size}" if self.size else self.class_name
        return self.text

    @property
    def class_name(self) -> str:
        """The name of the class alone."""
        name = self.type.rpartition(".")[2]
        return "None" if name == "NoneType" else name


class Difference(NamedTuple):
    """One leaf that differs between two calls."""

    path: str
    # The cause that this alone would be.
    cause: Cause
    # "shape", "dtype", "weak type", "sharding", "committed", "structure", "setting";
    # "static" for another value or type, "function" and "object" for another object
    # that looks the same.
    what: str
    # `None` where the leaf is in the other call only.
    old: Leaf | None
    new: Leaf | None


def is_below(path: str, node: str) -> bool:
    """Whether a path leads into the node at another path."""
    return path.startswith((f"{node}.", f"{node}[", f"{node}<"))


def show_array(shape: tuple[Any, ...], dtype: str) -> str:
    """`float32[8,4]`."""
    return f"{dtype}[{','.join(map(str, shape))}]"


def configuration() -> tuple[tuple[str, str], ...]:
    """JAX's settings that are part of the key of a trace, as `(name, text)`."""
    config = jax.config
    return tuple(
        (name, str(getattr(config, name)))
        for name in _SETTINGS
        if hasattr(config, name)
    )


# --- text of a static -----------------------------------------------------------------


def describe_static(x: Any) -> str:
    """A static value in about 60 characters at most. Never raises."""
    try:
        text = _text(x, 2)
    except Exception:  # of an object that lies about its type, say
        text = _with_article(type(x).__qualname__)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


def _text(x: Any, depth: int) -> str:
    cls = type(x)
    if cls is str or cls is bytes:
        return repr(x) if len(x) <= 40 else f"{x[:30]!r}... (length {len(x)})"
    if x is None or cls in (bool, float, complex, range, types.EllipsisType):
        return repr(x)
    if cls is int:
        return repr(x) if abs(x) < 10**40 else f"an int of {x.bit_length()} bits"
    if cls in (tuple, list, set, frozenset, dict):
        return _container_text(x, depth)
    if isinstance(x, types.FunctionType | types.MethodType):
        code = x.__code__
        file = os.path.basename(code.co_filename)
        return f"{x.__qualname__} ({file}:{code.co_firstlineno})"
    if isinstance(x, type):
        return x.__qualname__
    if isinstance(x, types.BuiltinFunctionType | types.ModuleType):
        return x.__name__
    if isinstance(x, enum.Enum):
        return f"{cls.__qualname__}.{x.name}"
    if isinstance(x, np.dtype):
        return str(x)
    if isinstance(x, np.bool_ | np.number):
        return f"{x.item()!r} ({x.dtype})"
    if isinstance(x, _ARRAYS):
        return show_array(x.shape, str(x.dtype))
    if isinstance(x, functools.partial):
        return f"partial of {_text(x.func, depth)}"
    # Not by `getattr`, which may run the user's code.
    name = inspect.getattr_static(x, "__qualname__", None)
    return name if isinstance(name, str) else _with_article(cls.__qualname__)


def _with_article(name: str) -> str:
    return f"{'an' if name[:1] in tuple('AEIOaeio') else 'a'} {name}"


def _container_text(x: Any, depth: int) -> str:
    if depth == 0:
        return f"{type(x).__name__} of {len(x)}"
    if isinstance(x, dict):
        pairs = itertools.islice(x.items(), _MAX_ITEMS)
        items = [f"{_text(k, depth - 1)}: {_text(v, depth - 1)}" for k, v in pairs]
    else:
        items = [_text(item, depth - 1) for item in itertools.islice(x, _MAX_ITEMS)]
    if isinstance(x, set | frozenset):
        items.sort()  # in another order in each process
    if len(x) > _MAX_ITEMS:
        items.append("...")
    inside = ", ".join(items)
    if isinstance(x, tuple):
        return f"({inside},)" if len(x) == 1 else f"({inside})"
    if isinstance(x, list):
        return f"[{inside}]"
    if isinstance(x, dict) or (x and isinstance(x, set)):
        return f"{{{inside}}}"
    return f"{type(x).__name__}({f'{{{inside}}}' if x else ''})"


# --- identity of a static -------------------------------------------------------------


def _identity(x: Any, depth: int = 6) -> int:
    """A number that is the same for statics that the engine takes for the same.

    It only serves reports: two statics with equal texts and numbers are not told apart.
    """
    cls = type(x)
    try:
        if cls is float:
            return hash(struct.pack("d", x))
        if cls is complex:
            return hash(struct.pack("dd", x.real, x.imag))
        if isinstance(x, np.ndarray | np.generic):
            return hash((str(x.dtype), x.shape, x.tobytes()))
        if depth > 0 and (parts := _parts(x)) is not None:
            return hash((cls, *(_identity(part, depth - 1) for part in parts)))
        return hash((cls, hash(x)))
    except Exception:  # no hash, or one that raises
        return id(x)


def _parts(x: Any) -> Iterable[Any] | None:
    """What a static is compared by, if it is compared part by part."""
    cls = type(x)
    if isinstance(x, tuple | list):
        return x
    if isinstance(x, dict):
        return itertools.chain.from_iterable(x.items())
    if isinstance(x, set):
        return [frozenset(x)]
    generated = dataclasses.is_dataclass(cls) or hasattr(cls, "__attrs_attrs__")
    if cls.__eq__ is object.__eq__ or not (generated or cls.__hash__ is None):
        return None
    return [value for _, value in _attributes(x)]


def _attributes(x: Any) -> list[tuple[str, Any]]:
    """Name and value of the attributes of an instance, without running its code.

    Not by `getattr`: a function that is a default would become a bound method.
    """
    slots = getattr(type(x), "__slots__", ())
    names = (*getattr(x, "__dict__", ()), *([slots] if type(slots) is str else slots))
    out: list[tuple[str, Any]] = []
    for name in names:
        try:
            out.append((name, object.__getattribute__(x, name)))
        except AttributeError:  # not set
            pass
    return out


# --- leaves ---------------------------------------------------------------------------

_ARRAYS = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)


def describe(
    arguments: list[tuple[str, Any]], earlier: Sequence[Leaf] = ()
) -> tuple[Leaf, ...]:
    """The leaves, nodes and static fields of a call, in order.

    **Arguments:**

    - `arguments`: name and value of each argument, as the user would write them. There
        may be tracers in place of arrays.
    - `earlier`: what was described while tracing. What is the same is shared with it,
        and of arrays only the placement is added.
    """
    known = {leaf.path: leaf for leaf in earlier}
    out: list[Leaf] = []
    # An explicit stack: trees may be deeper than Python's limit.
    pending = [(name, value, False) for name, value in reversed(arguments)]
    while pending:
        path, x, is_static = pending.pop()
        before = known.get(path)
        if isinstance(x, _ARRAYS) and not is_static:
            out.append(_array(path, x, before))
            continue
        children = None if is_static else _children(path, x)
        if children is None:
            for leaf in itertools.islice(_statics(path, x), 1 + _MAX_FIELDS):
                before = known.get(leaf.path)
                out.append(before if before == leaf and before else leaf)
        else:
            leaf = Leaf(path, "node", type=_type_name(type(x)), size=len(children))
            out.append(before if before == leaf and before else leaf)
            pending.extend(reversed(children))
    return tuple(out)


def _array(path: str, x: Any, before: Leaf | None) -> Leaf:
    if before is None or before.kind != "array":
        before = Leaf(
            path,
            "array",
            tuple(x.shape),
            _dtype_name(x),
            bool(getattr(x, "weak_type", False)),
        )
    sharding, committed = "", False
    if isinstance(x, Tracer):
        sharding = None
    elif isinstance(x, jax.Array):
        sharding, committed = _sharding_text(x.sharding), bool(x.committed)
    if (before.sharding, before.committed) == (sharding, committed):
        return before
    return before._replace(sharding=sharding, committed=committed)


def _dtype_name(x: Any) -> str:
    """The dtype that an array has in a trace."""
    if isinstance(x, np.ndarray | np.generic):
        try:
            return str(jax.dtypes.canonicalize_dtype(x.dtype))
        except TypeError:  # none that JAX knows
            pass
    return str(x.dtype)


@functools.lru_cache(maxsize=256)
def _sharding_text(sharding: Any) -> str:
    if isinstance(sharding, jax.sharding.SingleDeviceSharding):
        (device,) = sharding.device_set
        return str(device)
    if isinstance(sharding, jax.sharding.NamedSharding):
        return f"{sharding.spec} over {dict(sharding.mesh.shape)}"
    return str(sharding)


def _children(path: str, x: Any) -> list[tuple[str, Any, bool]] | None:
    """Paths and values below a node, static fields included; `None` for a leaf."""
    cls = type(x)
    if x is None:
        return []
    if cls is tuple or cls is list:
        return [(f"{path}[{i}]", value, False) for i, value in enumerate(x)]
    if cls is dict:
        return [(f"{path}[{describe_static(k)}]", v, False) for k, v in x.items()]
    if isinstance(x, eqx.Module):
        values = dict(_attributes(x))
        return [
            (f"{path}.{f.name}", values[f.name], bool(f.metadata.get("static")))
            for f in dataclasses.fields(x)
            if f.name in values
        ]
    try:
        pairs, treedef = jtu.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)
        if jtu.treedef_is_leaf(treedef):
            return None
        data = treedef.node_data()
    except Exception:  # of the class's own flatten function
        return None
    out = [(f"{path}{jtu.keystr(keys)}", value, False) for keys, value in pairs]
    if data is not None and data[1] is not None:
        out.append((f"{path}<static>", data[1], True))
    return out


def _type_name(cls: type) -> str:
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def _statics(
    path: str, x: Any, of: str = "", depth: int = _MAX_DEPTH
) -> Iterator[Leaf]:
    """A static, and the fields of one that has some: a configuration."""
    yield Leaf(
        path,
        "static",
        type=_type_name(type(x)),
        text=describe_static(x),
        identity=_identity(x),
        of=of,
    )
    if depth > 0:
        for name, value in itertools.islice(_fields(x), _MAX_FIELDS):
            yield from _statics(path + name, value, type(x).__qualname__, depth - 1)


def _fields(x: Any) -> list[tuple[str, Any]]:
    cls = type(x)
    try:
        if cls is dict:
            return [(f"[{k!r}]", v) for k, v in x.items() if type(k) is str]
        if cls.__eq__ is object.__eq__ or cls.__module__ == "builtins":
            return []
        if isinstance(x, _ARRAYS):
            return []
        return [(f".{name}", value) for name, value in _attributes(x)]
    except Exception:  # of a class with a `__dict__` of its own
        return []


# --- what differs ---------------------------------------------------------------------

# What may differ, and the cause that it is. The most important is first.
_CAUSES = {
    "setting": Cause.CONFIGURATION,
    "structure": Cause.STRUCTURE,
    "static": Cause.STATIC,
    "function": Cause.STATIC,
    "object": Cause.STATIC,
    "dtype": Cause.DTYPE,
    "shape": Cause.SHAPE,
    "weak type": Cause.DTYPE,
    "sharding": Cause.PLACEMENT,
    "committed": Cause.PLACEMENT,
}
_RANKS = {what: rank for rank, what in enumerate(_CAUSES)}


def compare(event: Any, history: Iterable[Any]) -> tuple[Cause, tuple[Difference, ...]]:
    """Why an event happened, against the earlier one that it differs least from.

    **Returns:**

    The cause, and each difference, the most important first. There is none for the
    first call of a function, and for one of which JAX's caches were cleared.
    """
    alike = _alike(event, history)
    own = [old for old in alike if old.function.number == event.function.number]
    if not own and not alike:
        return Cause.NEW_FUNCTION, ()
    found = min((differences(old, event) for old in own or alike), key=_distance)
    if not own:
        # The line that made this function has made another one before.
        made = Difference(
            event.function.name, Cause.NEW_FUNCTION, "function", None, None
        )
        return Cause.NEW_FUNCTION, (made, *found)
    return found[0].cause if found else Cause.CONFIGURATION, tuple(found)


def _alike(event: Any, history: Iterable[Any]) -> list[Any]:
    """The earlier events that could have spared this one, the newest first."""
    out: list[Any] = []
    for old in reversed(tuple(history)):
        if old is event or old.failed or old.function.key() != event.function.key():
            continue
        if not event.traced and (old.compile == 0 or old.ahead != event.ahead):
            continue  # its trace was there, but nothing that was compiled
        if event.function.place is None and old.frames[:1] != event.frames[:1]:
            continue  # two Modules, say, which have nothing to do with each other
        out.append(old)
        if len(out) == _MAX_COMPARED:
            break
    return out


def _distance(found: list[Difference]) -> int:
    """By how much two calls differ."""
    return sum(1 + (d.what == "structure") for d in found)


def differences(old: Any, new: Any) -> list[Difference]:
    """Each difference between two calls, the most important first."""
    out = _signature_differences(old.signature, new.signature)
    was, now = dict(old.config), dict(new.config)
    for name in dict.fromkeys([*was, *now]):
        pair = was.get(name, "unset"), now.get(name, "unset")
        if pair[0] != pair[1]:
            a, b = (Leaf(name, "setting", text=text) for text in pair)
            out.append(Difference(name, Cause.CONFIGURATION, "setting", a, b))
    lengths = {
        lengths
        for d in out
        if d.what == "shape" and d.old is not None and d.new is not None
        for lengths in zip(d.old.shape, d.new.shape, strict=False)
    }
    return sorted(out, key=lambda d: _rank(d, lengths))


def _rank(d: Difference, lengths: set[tuple[Any, Any]]) -> float:
    texts = {(str(a), str(b)) for a, b in lengths}
    if d.what == "static" and d.old and d.new and (d.old.text, d.new.text) in texts:
        # A number that is the length of an array changes because that does.
        return _RANKS["shape"] + 0.5
    return _RANKS[d.what]


def _signature_differences(
    old: tuple[Leaf, ...], new: tuple[Leaf, ...]
) -> list[Difference]:
    before = {leaf.path: leaf for leaf in old}
    after = {leaf.path: leaf for leaf in new}
    out: list[Difference] = []
    told: list[str] = []  # everything below these
    # In the order of the new call; what is gone comes last.
    for path in dict.fromkeys([*after, *before]):
        a, b = before.get(path), after.get(path)
        if a is b or a == b or any(is_below(path, node) for node in told):
            continue
        for what in _what_differs(a, b):
            if what == "structure" or (what == "static" and _type(a) != _type(b)):
                told.append(path)
            out.append(Difference(path, _CAUSES[what], what, a, b))
    # Not statics that are others because of a field, which is there as well.
    fields = [d.path for d in out if (d.new or d.old or _NOTHING).of]
    return [d for d in out if not any(is_below(f, d.path) for f in fields)]


_NOTHING = Leaf("", "node")


def _type(leaf: Leaf | None) -> str:
    return "" if leaf is None else leaf.type


def _what_differs(a: Leaf | None, b: Leaf | None) -> Iterator[str]:
    if a is None or b is None or a.kind != b.kind:
        # An array that was a number, or a static that was None, is no other structure;
        # nor is a configuration with another option.
        kinds = {leaf.kind for leaf in (a, b) if leaf is not None}
        both = a is not None and b is not None
        of = any(leaf.of for leaf in (a, b) if leaf is not None)
        yield "static" if of or (both and "static" in kinds) else "structure"
    elif b.kind == "node":
        yield "structure"
    elif b.kind == "static":
        if (a.type, a.text) != (b.type, b.text):
            yield "static"
        else:
            yield "function" if b.type in FUNCTIONS else "object"
    else:
        yield from _array_differences(a, b)


def _array_differences(a: Leaf, b: Leaf) -> Iterator[str]:
    if a.shape != b.shape:
        yield "shape"
    if a.dtype != b.dtype:
        yield "dtype"
    elif a.weak_type != b.weak_type:
        yield "weak type"
    if a.sharding is None or b.sharding is None:
        return
    # What is on no device is put where it is needed.
    if a.sharding and b.sharding and a.sharding != b.sharding:
        yield "sharding"
    elif a.committed != b.committed:
        yield "committed"
