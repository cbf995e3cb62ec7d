"""Values of random programs: built from a description, changed, and shown as text.

A description is a list, `[kind, *parts]`, whose parts are descriptions or plain data:
it can be written as JSON. `build` makes a new and equal value each time.
"""

import collections
import dataclasses
import math
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from tests.support.modules import Frozen, Hashed, Holder, Inner, Node, Pair, Unhashed


@dataclasses.dataclass
class Mutable:
    """Has no hash."""

    value: object


@jtu.register_dataclass
@dataclasses.dataclass
class Registered:
    """A pytree."""

    value: object
    tag: object = dataclasses.field(metadata={"static": True})


FUNCTIONS = {"tanh": jnp.tanh, "sin": math.sin, "int": int, "Pair": Pair}
OBJECTS = [object() for _ in range(3)]
FLOATS = {"nan": math.nan, "-0.0": -0.0, "inf": math.inf}

CONTAINERS = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": collections.deque,
}
HOLDERS = {
    "frozen": Frozen,
    "mutable": Mutable,
    "hashed": Hashed,
    "unhashed": Unhashed,
    "inner": Inner,
    "namespace": lambda x: types.SimpleNamespace(value=x),
}


def array(dtype, shape, start):
    """An array of whole numbers."""
    n = math.prod(shape)
    return (np.arange(n) + start).reshape(shape).astype(dtype)


def build(description):
    """A new value."""
    kind, *parts = description
    if kind in CONTAINERS:
        return CONTAINERS[kind]([build(x) for x in parts])
    if kind in HOLDERS:
        return HOLDERS[kind](build(parts[0]))
    if kind == "plain":  # int, bool, str or None
        return parts[0]
    if kind == "float":
        return FLOATS.get(parts[0], parts[0])
    if kind == "complex":
        return complex(*parts)
    if kind == "bytes":
        return parts[0].encode()
    if kind == "dict":
        return {build(key): build(value) for key, value in parts}
    if kind == "pair":
        return Pair(build(parts[0]), build(parts[1]))
    if kind == "function":
        return FUNCTIONS[parts[0]]
    if kind == "object":
        return OBJECTS[parts[0]]
    if kind == "numpy":
        return array(*parts)
    if kind == "jax":
        return jnp.asarray(array(*parts))
    if kind == "holder":
        return Holder(build(parts[0]), build(parts[1]))
    if kind == "registered":
        return Registered(build(parts[0]), build(parts[1]))
    if kind == "node":
        return Node([build(x) for x in parts[1:]], build(parts[0]))
    raise AssertionError(kind)


# --- as text ---


def parts_of(x):
    """What a value holds, by name; nothing if it is no container."""
    if isinstance(x, dict):
        return list(x.items())
    if isinstance(x, list | tuple | collections.deque):
        return list(enumerate(x))
    if isinstance(x, set | frozenset):
        return [("member", member) for member in x]
    if isinstance(x, Node):
        return [("aux", x.aux), *enumerate(x.children)]
    if isinstance(x, Holder):
        return [("x", x.x), ("static", x.static)]
    if isinstance(x, Registered):
        return [("value", x.value), ("tag", x.tag)]
    if isinstance(x, _WITH_VALUE):
        return [("value", x.value)]
    return []


_WITH_VALUE = Frozen, Mutable, Hashed, Unhashed, Inner, types.SimpleNamespace
_STATIC_PARTS = {"static", "tag", "aux"}


def show(x, *, static=False):
    """What a traced function sees of a value: types, statics, and kinds of arrays.

    `static`: whether it is in a static field, where arrays are not traced.
    """
    name = type(x).__name__
    if isinstance(x, jax.core.Tracer) or (eqx.is_array(x) and not static):
        return f"{x.dtype}{list(x.shape)}"
    if isinstance(x, np.ndarray):
        return f"{name} {x.dtype} {x.tolist()}"
    if type(x) is object:
        return f"object {OBJECTS.index(x)}"
    if callable(x):
        return f"{name} {x.__name__}"

    parts = parts_of(x)
    if not parts:
        return f"{name} {x!r}" if isinstance(x, _SCALARS) else name

    shown = [
        f"{key!r}={show(part, static=static or key in _STATIC_PARTS)}"
        for key, part in parts
    ]

    # JAX sorts the keys of a dictionary that it flattens; a set has no order.
    if (type(x) is dict and not static) or isinstance(x, set | frozenset):
        shown.sort()
    return f"{name}({', '.join(shown)})"


_SCALARS = int, float, complex, str, bytes, type(None)


def arrays(x):
    return [leaf for leaf in jtu.tree_leaves(x) if eqx.is_array(leaf)]


# --- changes in place ---

_MUTABLE = (
    *(list, dict, set, collections.deque),
    *(Mutable, Unhashed, types.SimpleNamespace),
)


def mutables(x):
    """All that can be changed in place below a value, itself included."""
    out = [x] if type(x) in _MUTABLE else []  # not `Hashed`, which must not change
    for _, part in parts_of(x):
        out += mutables(part)
    return out


def change(x, value):
    """Change one object in place, in a way that differs with the value."""
    if isinstance(x, list | collections.deque):
        if len(x) < 2:
            x.append(value)
        else:
            x[0] = value
    elif isinstance(x, dict):
        key = next(iter(x), "new")
        x[key] = value
    elif isinstance(x, set):
        # Equal to no other member: for a set, 1 is the same as True.
        x.add(("added", repr(value)))
    else:
        x.value = value
