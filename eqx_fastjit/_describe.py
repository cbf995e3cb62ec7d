"""A call in words: what each leaf of its arguments was, without holding on to any.

Written down whenever something is traced or compiled, so that a later call can be
compared with it. Leaves hold shapes, dtypes, types and short texts. No `__repr__` of a
static is called: it may be slow, and it may print what nobody wants in a report.
Nothing here raises because of a user's class.
"""

import dataclasses
import enum
import functools
import inspect
import itertools
import os
import reprlib
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from ._place import Place
from ._private import instance_dict
from ._reference import static_key
from ._statics import is_array, reader_of


_MAX_TEXT = 60
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
    # Of an array, also of one that is static.
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
    # with the same text.
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

# Types whose own `repr` is short.
_PLAIN = (types.NoneType, bool, float, complex, range, types.EllipsisType)


class _Words(reprlib.Repr):
    """Containers, numbers and strings as `repr` has them, but short."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxlong = 40

    repr_bytes = reprlib.Repr.repr_str

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        """In its own order, which counts."""
        if level <= 0:
            return "{...}"
        shown = itertools.islice(x.items(), self.maxdict)
        parts = [
            f"{self.repr1(k, level - 1)}: {self.repr1(v, level - 1)}" for k, v in shown
        ]
        if len(x) > self.maxdict:
            parts.append("...")
        return f"{{{', '.join(parts)}}}"

    def repr_instance(self, x: Any, level: int) -> str:
        """Anything else, by its type or its name."""
        cls = type(x)
        if cls in _PLAIN:
            return repr(x)
        if isinstance(x, np.bool_ | np.number):
            return f"{x.item()!r} ({x.dtype})"
        if is_array(x, abstract=True):
            return show_array(x.shape, str(x.dtype))
        if isinstance(x, types.FunctionType | types.MethodType):
            code = x.__code__
            file = os.path.basename(code.co_filename)
            return f"{x.__qualname__} ({file}:{code.co_firstlineno})"
        if isinstance(x, type | types.BuiltinFunctionType | types.ModuleType):
            return x.__name__
        if isinstance(x, enum.Enum):
            return f"{cls.__qualname__}.{x.name}"
        if isinstance(x, np.dtype):
            return str(x)
        if isinstance(x, functools.partial):
            return f"partial of {self.repr1(x.func, level)}"
        # Not by `getattr`, which may run the user's code.
        name = inspect.getattr_static(x, "__qualname__", None)
        return name if isinstance(name, str) else _with_article(cls.__qualname__)


_words = _Words()


def describe_static(x: Any) -> str:
    """A static value in about 60 characters at most. Never raises."""
    try:
        text = _words.repr(x)
    except Exception:  # of an object that lies about its type, say
        text = _with_article(type(x).__qualname__)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


def _with_article(name: str) -> str:
    return f"{'an' if name[:1] in tuple('AEIOaeio') else 'a'} {name}"


# --- leaves ---------------------------------------------------------------------------


def describe(arguments: list[tuple[str, Any]]) -> tuple[Leaf, ...]:
    """The leaves, nodes and static fields of a call, in order.

    **Arguments:**

    - `arguments`: name and value of each argument, as the user would write them. There
        may be tracers in place of arrays.
    """
    out: list[Leaf] = []
    # An explicit stack: trees may be deeper than Python's limit.
    pending = [(name, value, False) for name, value in reversed(arguments)]
    while pending:
        path, x, is_static = pending.pop()
        if is_array(x, abstract=True) and not is_static:
            out.append(_array(path, x))
            continue
        children = None if is_static else _children(path, x)
        if children is None:
            out += itertools.islice(_statics(path, x), 1 + _MAX_FIELDS)
        else:
            out.append(Leaf(path, "node", type=_type_name(type(x)), size=len(children)))
            pending.extend(reversed(children))
    return tuple(out)


def _array(path: str, x: Any) -> Leaf:
    sharding, committed = "", False
    if isinstance(x, Tracer):
        sharding = None
    elif isinstance(x, jax.Array):
        sharding, committed = _sharding_text(x.sharding), bool(x.committed)
    weak_type = bool(getattr(x, "weak_type", False))
    shape, dtype = array_type(x)
    return Leaf(path, "array", shape, str(dtype), weak_type, sharding, committed)


def array_type(x: Any) -> tuple[tuple[int, ...], Any]:
    """The shape of an array, and the dtype that it has in a trace."""
    dtype = x.dtype
    try:
        if not jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
            dtype = jax.dtypes.canonicalize_dtype(dtype)
    except TypeError:  # none that JAX knows
        pass
    return tuple(x.shape), dtype


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
    try:
        pairs, treedef = jtu.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)
    except Exception:  # of the class's own flatten function
        return None
    data = treedef.node_data()
    if data is None:
        return None
    if data[1] is x and x is not None:  # by `jax.tree_util.register_static`
        return None
    out = [(f"{path}{jtu.keystr(keys)}", value, False) for keys, value in pairs]
    if isinstance(x, eqx.Module):
        fields = dataclasses.fields(x)
        values = instance_dict(x)
        statics = [f.name for f in fields if f.metadata.get("static")]
        out += [(f"{path}.{n}", values[n], True) for n in statics if n in values]
    elif data[0] is not dict and data[1] is not None:
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
    try:
        identity = hash(static_key(x))
    except Exception:  # of the class's own hash, say
        identity = id(x)
    has_shape = is_array(x, abstract=True)
    yield Leaf(
        path,
        "static",
        shape=tuple(x.shape) if has_shape else (),
        dtype=str(x.dtype) if has_shape else "",
        type=_type_name(type(x)),
        text=describe_static(x),
        identity=identity,
        of=of,
    )
    if depth > 0:
        for name, value in itertools.islice(_fields(x), _MAX_FIELDS):
            yield from _statics(path + name, value, type(x).__qualname__, depth - 1)


def _fields(x: Any) -> list[tuple[str, Any]]:
    """What a static is compared by, if it has names for that."""
    try:
        if type(x) is dict:
            return [(f"[{k!r}]", v) for k, v in x.items() if type(k) is str]
        reader = reader_of(x)
        if reader.name == "fields":
            return [(f".{name}", getattr(x, name, None)) for name in reader.names]
        if reader.name in ("module", "hashed", "state"):
            return [(f".{name}", value) for name, value in vars(x).items()]
    except Exception:  # it has no `__dict__`, or one of its own
        pass
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


class Reason(NamedTuple):
    """Why an event happened."""

    cause: Cause = Cause.NEW_FUNCTION
    # The most important first. There is none for the first call of a function, and for
    # one of which JAX's caches were cleared.
    differences: tuple[Difference, ...] = ()
    # The user's lines that led to the event that it differs from, innermost first.
    earlier: tuple[Place, ...] = ()


def compare(event: Any, history: Iterable[Any]) -> Reason:
    """Why an event happened, against the earlier one that it differs least from."""
    alike = list(itertools.islice(_alike(event, history), _MAX_COMPARED))
    own = [old for old in alike if old.function.number == event.function.number]
    if not alike:
        return Reason()
    compared = [(_between(old, event), old) for old in own or alike]
    differing, nearest = min(compared, key=lambda pair: _distance(pair[0]))
    found = tuple(differing)
    if not own:
        # The line that made this function has made another one before.
        made = Difference(
            event.function.name, Cause.NEW_FUNCTION, "function", None, None
        )
        return Reason(Cause.NEW_FUNCTION, (made, *found), nearest.frames)
    cause = found[0].cause if found else Cause.CONFIGURATION
    return Reason(cause, found, nearest.frames)


def _alike(event: Any, history: Iterable[Any]) -> Iterator[Any]:
    """The earlier events that could have spared this one, the newest first."""
    for old in reversed(tuple(history)):
        if old is event or old.failed or old.function.key() != event.function.key():
            continue
        if old.compile == 0 and (event.compile or not event.traced):
            continue  # a part of another function, which has spared no compilation
        if not event.traced and old.ahead != event.ahead:
            continue
        if event.function.place is None and old.frames[:1] != event.frames[:1]:
            continue  # two Modules, say, which have nothing to do with each other
        yield old


def _between(old: Any, new: Any) -> list[Difference]:
    if old.config == new.config:  # nearly all, and much quicker
        return differences(old.signature, new.signature)
    return differences(_with_settings(old), _with_settings(new))


def _with_settings(event: Any) -> tuple[Leaf, ...]:
    settings = [Leaf(name, "setting", text=text) for name, text in event.config]
    return (*event.signature, *settings)


def _distance(found: list[Difference]) -> int:
    """By how much two calls differ."""
    return sum(1 + (d.what == "structure") for d in found)


def differences(old: Iterable[Leaf], new: Iterable[Leaf]) -> list[Difference]:
    """Each difference between two calls, the most important first."""
    before = {leaf.path: leaf for leaf in old}
    after = {leaf.path: leaf for leaf in new}
    out: list[Difference] = []
    told: list[str] = []  # everything below these
    # In the order of the new call; what is gone comes last.
    for path in dict.fromkeys([*after, *before]):
        a, b = before.get(path), after.get(path)
        if a == b or any(is_below(path, node) for node in told):
            continue
        for what in _what_differs(a, b):
            if what == "structure" or (
                what == "static" and (a and a.type) != (b and b.type)
            ):
                told.append(path)
            out.append(Difference(path, _CAUSES[what], what, a, b))
    # Not statics that are others because of a field, which is there as well.
    fields = [d.path for d in out if any(leaf and leaf.of for leaf in (d.old, d.new))]
    out = [d for d in out if not any(is_below(f, d.path) for f in fields)]
    lengths = {
        (str(a), str(b))
        for d in out
        if d.what == "shape" and d.old and d.new
        for a, b in zip(d.old.shape, d.new.shape, strict=False)
    }

    def rank(d: Difference) -> float:
        if d.what == "static" and (str(d.old), str(d.new)) in lengths:
            # A number that is the length of an array changes because that does.
            return _RANKS["shape"] + 0.5
        return _RANKS[d.what]

    return sorted(out, key=rank)


def _what_differs(a: Leaf | None, b: Leaf | None) -> Iterator[str]:
    if a is None or b is None or a.kind != b.kind:
        # An array that was a number, or a static that was None, is no other structure;
        # nor is a configuration with another option.
        both = [leaf for leaf in (a, b) if leaf is not None]
        kinds = [leaf.kind for leaf in both]
        is_static = any(leaf.of for leaf in both) or (
            len(both) == 2 and "static" in kinds
        )
        yield "static" if is_static else "structure"
    elif b.kind == "array":
        yield from _array_differences(a, b)
    elif b.kind != "static":
        yield "setting" if b.kind == "setting" else "structure"
    elif (a.type, a.text) != (b.type, b.text):
        yield "static"
    else:
        yield "function" if b.type in FUNCTIONS else "object"


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
