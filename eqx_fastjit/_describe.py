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
# Fields of statics, of a call in all.
_MAX_FIELDS = 200
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


class Cause(enum.StrEnum):
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
    # Of all but an array.
    text: str = ""
    # Of a static: distinguishes values with equal texts.
    identity: int = 0
    # Of a field of another static, such as a configuration: the class of that.
    of: str = ""

    def __str__(self) -> str:
        is_array = self.kind == "array"
        return show_array(self.shape, self.dtype) if is_array else self.text


# What may differ, and the cause that this alone would be. The most important is first.
_CAUSES = {
    "function": Cause.NEW_FUNCTION,
    "setting": Cause.CONFIGURATION,
    "structure": Cause.STRUCTURE,
    "dtype": Cause.DTYPE,
    # The length of an array often is a static as well, and changes because that does.
    "shape": Cause.SHAPE,
    "static": Cause.STATIC,
    "object": Cause.STATIC,
    "weak type": Cause.DTYPE,
    "placement": Cause.PLACEMENT,
}


class Difference(NamedTuple):
    """One leaf that differs between two calls."""

    path: str
    # "shape", "dtype", "weak type", "placement", "structure", "setting"; "static" for
    # another value or type, "object" for another object with the same text; "function"
    # for the function itself.
    what: str
    # `None` where the leaf is in the other call only.
    old: Leaf | None
    new: Leaf | None

    @property
    def cause(self) -> Cause:
        """The cause that this alone would be."""
        return _CAUSES[self.what]


class Reason(NamedTuple):
    """Why an event happened."""

    cause: Cause = Cause.NEW_FUNCTION
    # The most important first. There is none for the first call of a function, and for
    # one of which JAX's caches were cleared.
    differences: tuple[Difference, ...] = ()
    # The user's lines that led to the event that it differs from, innermost first.
    earlier: tuple[Place, ...] = ()


def is_below(path: str, node: str) -> bool:
    """Whether a path leads into the node at another path."""
    return path.startswith((f"{node}.", f"{node}[", f"{node}<"))


def show_array(shape: tuple[Any, ...], dtype: str) -> str:
    """`float32[8,4]`."""
    return f"{dtype}[{','.join(map(str, shape))}]"


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
        if cls in _PLAIN or isinstance(x, np.generic | np.dtype):
            return repr(x)
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


class _Part(NamedTuple):
    """What a call is described by: an argument, or something in one."""

    path: str
    value: Any
    # Whether it is static for where it stands, whatever it is.
    is_static: bool = False
    # The class of the static that it is a field of.
    of: str = ""


def describe(arguments: list[tuple[str, Any]]) -> tuple[Leaf, ...]:
    """The leaves, nodes and static fields of a call, in order, and JAX's settings.

    **Arguments:**

    - `arguments`: name and value of each argument, as the user would write them. There
        may be tracers in place of arrays.
    """
    out: list[Leaf] = []
    n_fields = 0
    # An explicit stack: trees may be deeper than Python's limit.
    pending = [_Part(name, value) for name, value in reversed(arguments)]
    while pending:
        part = pending.pop()
        if is_array(part.value, abstract=True) and not part.is_static:
            out.append(_array(part.path, part.value))
            continue
        children = None if part.is_static else _children(part)
        if children is not None:
            out.append(_node(part, len(children)))
        else:
            out.append(_static(part))
            children = _fields(part)[: _MAX_FIELDS - n_fields]
            n_fields += len(children)
        pending.extend(reversed(children))
    config = jax.config
    settings = [(x, getattr(config, x)) for x in _SETTINGS if hasattr(config, x)]
    return (*out, *(Leaf(x, "setting", text=str(value)) for x, value in settings))


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


def _children(part: _Part) -> list[_Part] | None:
    """What is below a node, static fields included; `None` for a leaf."""
    path, x = part.path, part.value
    try:
        pairs, treedef = jtu.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)
    except Exception:  # of the class's own flatten function
        return None
    data = treedef.node_data()
    if data is None:
        return None
    if data[1] is x and x is not None:  # by `jax.tree_util.register_static`
        return None
    out = [_Part(f"{path}{jtu.keystr(keys)}", value) for keys, value in pairs]
    if isinstance(x, eqx.Module):
        fields = dataclasses.fields(x)
        values = instance_dict(x)
        statics = [f.name for f in fields if f.metadata.get("static")]
        out += [_Part(f"{path}.{n}", values[n], True) for n in statics if n in values]
    elif data[0] is not dict and data[1] is not None:
        out.append(_Part(f"{path}<static>", data[1], True))
    return out


def _type_name(cls: type) -> str:
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def _node(part: _Part, size: int) -> Leaf:
    cls = type(part.value)
    text = "None" if part.value is None else cls.__qualname__
    text += f" of {size}" if size else ""
    return Leaf(part.path, "node", type=_type_name(cls), text=text)


def _static(part: _Part) -> Leaf:
    x = part.value
    try:
        identity = hash(static_key(x))
    except Exception:  # of the class's own hash, say
        identity = id(x)
    has_shape = is_array(x, abstract=True)
    return Leaf(
        part.path,
        "static",
        shape=tuple(x.shape) if has_shape else (),
        dtype=str(x.dtype) if has_shape else "",
        type=_type_name(type(x)),
        text=describe_static(x),
        identity=identity,
        of=part.of,
    )


def _fields(part: _Part) -> list[_Part]:
    """What a static is compared by, if it has names for that: a configuration."""
    x, of = part.value, type(part.value).__qualname__
    try:
        if type(x) is dict:
            values = {f"[{k!r}]": v for k, v in x.items() if type(k) is str}
        else:
            reader = reader_of(x)
            has_state = reader.name in ("hashed", "state")
            names = vars(x) if has_state else reader.names
            values = {f".{name}": getattr(x, name, None) for name in names}
    except Exception:  # it has no `__dict__`, or one of its own
        return []
    return [_Part(part.path + k, v, True, of) for k, v in values.items()]


# --- what differs ---------------------------------------------------------------------


def compare(event: Any, history: Iterable[Any]) -> Reason:
    """Why an event happened, against the earlier one that it differs least from."""
    alike = list(itertools.islice(_alike(event, history), _MAX_COMPARED))
    if not alike:
        return Reason()
    own = [old for old in alike if old.function.number == event.function.number]
    compared = [
        (differences(old.signature, event.signature), old) for old in own or alike
    ]
    found, nearest = min(compared, key=lambda pair: len(pair[0]))
    if not own:
        # The line that made this function has made another one before.
        found.insert(0, Difference(event.function.name, "function", None, None))
    cause = found[0].cause if found else Cause.CONFIGURATION
    return Reason(cause, tuple(found), nearest.frames)


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
            continue  # two lines that jit a class, say
        yield old


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
        out += (Difference(path, what, a, b) for what in _what_differs(a, b))
        if a is None or b is None or a.kind == "node" or a.type != b.type:
            told.append(path)
    # Not statics that are others because of a field, which is there as well.
    fields = [d.path for d in out if any(leaf and leaf.of for leaf in (d.old, d.new))]
    out = [d for d in out if not any(is_below(f, d.path) for f in fields)]
    return sorted(out, key=lambda d: list(_CAUSES).index(d.what))


def _what_differs(a: Leaf | None, b: Leaf | None) -> list[str]:
    """What differs between two leaves of a path that are not equal."""
    both = [leaf for leaf in (a, b) if leaf is not None]
    if a is None or b is None or a.kind != b.kind:
        # An array that was a number, or a static that was None, is no other structure;
        # nor is a configuration with another option.
        is_changed = len(both) == 2 and any(leaf.kind == "static" for leaf in both)
        is_static = is_changed or any(leaf.of for leaf in both)
        return ["static" if is_static else "structure"]
    if b.kind == "static":
        return ["object" if (a.type, a.text) == (b.type, b.text) else "static"]
    if b.kind != "array":
        return ["setting" if b.kind == "setting" else "structure"]
    found = {
        "shape": a.shape != b.shape,
        "dtype": a.dtype != b.dtype,
        "weak type": a.weak_type != b.weak_type and a.dtype == b.dtype,
        "placement": _is_placed_otherwise(a, b),
    }
    return [what for what, differs in found.items() if differs]


def _is_placed_otherwise(a: Leaf, b: Leaf) -> bool:
    if a.sharding is None or b.sharding is None:
        return False  # a tracer does not say
    # What is on no device is put where it is needed.
    is_moved = bool(a.sharding and b.sharding) and a.sharding != b.sharding
    return is_moved or a.committed != b.committed
