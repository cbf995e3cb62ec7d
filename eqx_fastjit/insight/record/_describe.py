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
import math
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np

from eqx_fastjit._callables import place_of
from eqx_fastjit._facts import (
    aval_of,
    current_settings,
    is_users,
    placement_of,
    SETTINGS,
)
from eqx_fastjit._statics import has_only_identity, is_array, known_reader, Walk
from eqx_fastjit._texts import describe_static, show_array

from ._leaves import Leaf


# Fields of statics, of a call in all; and how many functions capture one another: those
# of an optimiser, say.
_MAX_FIELDS, _MAX_DEPTH = 400, 4


# --- leaves ---------------------------------------------------------------------------


class _Part(NamedTuple):
    """What a call is described by: an argument, or something in one."""

    path: str
    value: Any
    # Whether it is static for where it stands, whatever it is.
    is_static: bool = False
    # The static that it is a part of: its class, and the category of that.
    of: str = ""
    holder: str = ""
    # How many functions have captured it, one in another one.
    depth: int = 0


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
    return Leaf(
        path,
        "array",
        text,
        "array",
        shape=x.shape,
        dtype=dtype,
        weak_type=weak_type,
        sharding=sharding,
    )


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
        elif type(x) in (list, tuple) and not is_node:
            values = {f"[{i}]": v for i, v in enumerate(x)}
        elif hasattr(type(x), "_fields") and not is_node:  # a named tuple
            fields = getattr(x, "_fields", ())
            values = {f".{k}": v for k, v in zip(fields, x, strict=True)}
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

    held = ("", "") if is_node else (type(x).__qualname__, category_of(type(x)))
    return is_node, [
        _Part(part.path + name, value, i >= n_dynamic, *held, part.depth)
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
    x, values, depth = part.value, dict[str, Any](), part.depth
    of = getattr(type(x), "__qualname__", "")
    if type(x) is functools.partial:
        values = {".func": x.func} | {f".args[{i}]": y for i, y in enumerate(x.args)}
        values |= {f".keywords[{k!r}]": y for k, y in x.keywords.items()}
    elif type(x) is _JITTED:
        values = {WRAPPED: x.__wrapped__}
    elif type(x) is types.FunctionType and "__wrapped__" in vars(x):
        values = {WRAPPED: vars(x)["__wrapped__"]}
    # A function of the call, what that wraps, and functions that these have captured;
    # not one in another static, such as a configuration.
    elif type(x) is types.FunctionType and (
        part.of in ("", *_WRAPPERS)
        or part.path.endswith(WRAPPED)
        or 0 < depth < _MAX_DEPTH
    ):
        depth += 1
        cells = zip(x.__code__.co_freevars, x.__closure__ or (), strict=False)
        for name, cell in cells:
            with contextlib.suppress(ValueError):  # it is empty
                values[f"<{name}>"] = cell.cell_contents

    return [
        _Part(part.path + name, y, True, of, "function", depth)
        for name, y in values.items()
    ]


@functools.lru_cache(maxsize=1024)
def category_of(cls: type) -> str:
    """That of a leaf of this class (see `Leaf`), but for arrays."""
    if issubclass(cls, eqx.Module):
        return "module"
    if cls in _NUMBERS or issubclass(cls, np.number):
        return "number"
    if issubclass(cls, _LABELS):
        return "label"
    if cls in _FUNCTIONS:
        return "function"
    if cls in _CONTAINERS:
        return "container"
    # Those of optax are named tuples.
    return "optimiser" if "GradientTransformation" in cls.__qualname__ else "object"


_NUMBERS = (int, float, complex)
_LABELS = (str, bytes, bool, np.bool_, type(None), type, enum.Enum)
_FUNCTIONS = (types.FunctionType, functools.partial, _JITTED)
_CONTAINERS = (list, tuple, dict, set, frozenset)


def _type_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")


def _node(part: _Part, size: int) -> Leaf:
    cls = type(part.value)
    text = "None" if part.value is None else cls.__qualname__
    text += f" of {size}" if size else ""
    category, name = category_of(cls), _type_name(cls)
    return Leaf(part.path, "structure", text, category, size=size, type=name)


# The numbers of functions and arrays that are alive, by `id`. Another one may be given
# the `id` of one that is gone, but never its number.
_numbers: dict[int, tuple[Any, int]] = {}
_counter = itertools.count(1)


def number_of(x: Any) -> int:
    """A number that no other function or array has, nor had one that is gone."""
    key = id(x)
    known, number = _numbers.get(key, (None, 0))
    if known is not None and known() is x:
        return number
    try:
        reference = weakref.ref(x, lambda _: _numbers.pop(key, None))
    except TypeError:
        return key
    _numbers[key] = reference, (number := next(_counter))
    return number


def _static(part: _Part, has_fields: bool) -> Leaf:
    x: Any = part.value
    place = None
    try:
        if type(x) is types.FunctionType:
            identity = number_of(x)
            place = place_of(x) if is_users(x.__code__.co_filename) else None
        elif isinstance(x, jax.Array):  # those of NumPy are compared by content
            identity = number_of(x)
        elif type(x) in _ATOMS and x == x:
            identity = hash(x)
        else:
            # What is within a static is told apart by its fields, and by the whole.
            identity = 0 if part.of and has_fields else hash((*Walk(x, True).trail,))
    except Exception:  # of the class's own hash, say
        identity = id(x)

    leaf = Leaf(
        part.path,
        "static",
        describe_static(x),
        category_of(type(x)),
        _number(x),
        type=_type_name(type(x)),
        identity=identity,
        of=part.of,
        holder=part.holder,
        place=place,
    )
    if not is_array(x, abstract=True) or isinstance(x, np.generic):
        return leaf
    array: Any = x
    return leaf._replace(category="array", shape=array.shape, dtype=str(array.dtype))


def _number(x: Any) -> int | float | None:
    """A number that JSON has, too."""
    value = x.item() if isinstance(x, np.number) else x
    if type(value) is int:
        return value if value.bit_length() < 64 else None
    return value if type(value) is float and math.isfinite(value) else None
