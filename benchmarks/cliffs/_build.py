"""Builds the arguments of a program from its description."""

import collections
import dataclasses
import enum
import functools as ft
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from ._programs import Node
from ._statics import MUTABLE, STATICS


# --- leaves --------------------------------------------------------------------------

# All trees share these arrays: only the nodes around them are rebuilt.
_POOL = 16


def _filled(n: int, i: int, dtype: Any) -> np.ndarray:
    return np.full((n,) if n else (), i % _POOL / 8 + 0.25, dtype)


LEAVES: dict[str, Callable[[int, int], Any]] = {
    "float32": lambda n, i: jnp.asarray(_filled(n, i, np.float32)),
    "int32": lambda n, i: jnp.asarray(_filled(n, i * 8, np.int32)),
    "bool": lambda n, i: jnp.asarray(_filled(n, i * 8, np.bool_)),
    "bfloat16": lambda n, i: jnp.asarray(_filled(n, i, np.float32), jnp.bfloat16),
    "weak": lambda n, i: jax.lax.full((n,) if n else (), i % _POOL / 8),
    "key": lambda n, i: jax.random.key(i % _POOL),
    "numpy float32": lambda n, i: _filled(n, i, np.float32),
    "numpy int32": lambda n, i: _filled(n, i * 8, np.int32),
    "numpy scalar": lambda n, i: np.float32(i % _POOL / 8),
    "float0": lambda n, i: np.zeros((n,) if n else (), jax.dtypes.float0),
}


@ft.cache
def _leaf(of: str, n: int, i: int) -> Any:
    return LEAVES[of](n, i)


def is_array(x: Any) -> bool:
    """Whether `filter_jit` traces this leaf."""
    return isinstance(x, jax.Array | np.ndarray | np.generic)


# --- nodes ---------------------------------------------------------------------------


class Pair(NamedTuple):
    """A namedtuple as a node."""

    first: Any
    second: Any


class Registered:
    """Registered by `register_pytree_node`."""

    def __init__(self, children: Any, aux: Any):
        self.children = children
        self.aux = aux


class WithKeys(Registered):
    """Registered by `register_pytree_with_keys`."""


def _flatten(x: Registered) -> Any:
    return x.children, x.aux


def _flatten_with_keys(x: WithKeys) -> Any:
    keys = [(jtu.SequenceKey(i), child) for i, child in enumerate(x.children)]
    return keys, x.aux


jtu.register_pytree_node(Registered, _flatten, lambda aux, c: Registered(c, aux))
jtu.register_pytree_with_keys(
    WithKeys, _flatten_with_keys, lambda aux, c: WithKeys(c, aux), _flatten
)


@jtu.register_dataclass
@dataclasses.dataclass
class Data:
    """Registered by `register_dataclass`. The second field is static."""

    children: Any
    aux: Any = dataclasses.field(metadata={"static": True})


class Part(enum.Enum):
    """Keys of a dictionary, which JAX can sort."""

    a = 0
    b = 1
    c = 2
    d = 3

    def __lt__(self, other: Any) -> bool:
        return self.value < other.value


class NumberedPart(enum.IntEnum):
    """Keys of a dictionary that are integers, too."""

    a = 3
    b = 1
    c = 2
    d = 0


class NamedPart(enum.StrEnum):
    """Keys of a dictionary that are strings, too."""

    a = "z"
    b = "a"
    c = "m"
    d = "b"


class Name(str):
    """A subclass of `str`."""


MAX_KEYS = 4
# Created anew each time, as in a function that builds a dictionary.
KEYS: dict[str, Callable[[int], Any]] = {
    "str": lambda i: f"layer{9 - i}",
    "int": lambda i: 1009 - i,
    "float": lambda i: i + 0.5,
    "bool": lambda i: i % 2 == 0,
    "bytes": lambda i: b"k%d" % i,
    "tuple": lambda i: (f"block{9 - i}", i),
    "enum": lambda i: list(Part)[i],
    "int enum": lambda i: list(NumberedPart)[i],
    "str enum": lambda i: list(NamedPart)[i],
    "str subclass": lambda i: Name(f"layer{9 - i}"),
    "int and bool": lambda i: (True, 0, 7, 1003)[i],
}


def _pairs(node: Node, children: list[Any]) -> list[tuple[Any, Any]]:
    return [(KEYS[node.of](i), child) for i, child in enumerate(children)]


@ft.cache
def module_class(of: str, children: int, statics: tuple[str, ...]) -> Any:
    """A Module class with this many dynamic fields, and one static field for each
    static.

    **Arguments:**

    - `of`: `"statics first"`; `"derived"`, from a class with the first dynamic field;
        or `""`.
    - `children`: number of dynamic fields.
    - `statics`: the kinds of its static fields. There is one class for each
        combination.
    """
    dynamic = [f"d{i}" for i in range(children)]
    static = [f"s{i}" for i in range(len(statics))]
    names = static + dynamic if of == "statics first" else dynamic + static
    bases: tuple[Any, ...] = (eqx.Module,)
    if of == "derived" and dynamic:
        base = types.new_class("Base", bases, exec_body=_fields(dynamic[:1], []))
        bases, names = (base,), names[1:]
    return types.new_class("Module", bases, exec_body=_fields(names, static))


def _fields(names: list[str], static: list[str]) -> Callable[[dict[str, Any]], None]:
    def fill(namespace: dict[str, Any]) -> None:
        namespace["__annotations__"] = dict.fromkeys(names, Any)
        for name in static:
            namespace[name] = eqx.field(static=True)

    return fill


def _module(node: Node, children: list[Any], statics: list[Any]) -> Any:
    fields = {f"d{i}": child for i, child in enumerate(children)}
    fields |= {f"s{i}": static for i, static in enumerate(statics)}
    return module_class(node.of, len(children), node.statics)(**fields)


def _aux(node: Node, statics: list[Any]) -> Any:
    return statics[0] if len(statics) == 1 else tuple(statics)


NODES: dict[str, Callable[[Node, list[Any], list[Any]], Any]] = {
    "None": lambda node, c, s: None,
    "tuple": lambda node, c, s: tuple(c),
    "list": lambda node, c, s: c,
    "namedtuple": lambda node, c, s: Pair(*c),
    "dict": lambda node, c, s: dict(_pairs(node, c)),
    "OrderedDict": lambda node, c, s: collections.OrderedDict(_pairs(node, c)),
    "defaultdict": lambda node, c, s: collections.defaultdict(list, _pairs(node, c)),
    "module": _module,
    "registered": lambda node, c, s: Registered(tuple(c), _aux(node, s)),
    "registered with keys": lambda node, c, s: WithKeys(tuple(c), _aux(node, s)),
    "registered dataclass": lambda node, c, s: Data(c, _aux(node, s)),
    "eqx.Partial": lambda node, c, s: eqx.Partial(_apply, *c),
    "jtu.Partial": lambda node, c, s: jtu.Partial(_apply, *c),
    "nn": lambda node, c, s: _layer(node.of),
    "optax": lambda node, c, s: _optimiser_state(node.of, c[0]),
}


KINDS = (*NODES, "leaf", "static", "repeat")


def _apply(*args: Any) -> Any:
    return args


# --- layers and optimisers -----------------------------------------------------------


def _layers() -> dict[str, Callable[[Any], Any]]:
    nn = eqx.nn
    return {
        "Linear": lambda key: nn.Linear(3, 3, key=key),
        "MLP": lambda key: nn.MLP(3, 3, 3, 2, key=key),
        "LayerNorm": lambda key: nn.LayerNorm(3),
        "RMSNorm": lambda key: nn.RMSNorm(3),
        "Conv2d": lambda key: nn.Conv2d(1, 3, 3, key=key),
        "GRUCell": lambda key: nn.GRUCell(3, 3, key=key),
        "LSTMCell": lambda key: nn.LSTMCell(3, 3, key=key),
        "Embedding": lambda key: nn.Embedding(3, 3, key=key),
        "Dropout": lambda key: nn.Dropout(0.5),
        "MultiheadAttention": lambda key: nn.MultiheadAttention(1, 3, key=key),
    }


LAYERS = tuple(_layers())


def _layer(name: str) -> Any:
    """A new layer of Equinox, whose arrays are filled without random numbers."""
    make = _layers()[name]
    skeleton = eqx.filter_eval_shape(lambda: make(jax.random.key(0)))

    def fill(x: Any) -> Any:
        if not isinstance(x, jax.ShapeDtypeStruct):
            return x
        return _constant(x.shape, str(x.dtype))

    return jtu.tree_map(fill, skeleton)


@ft.cache
def _constant(shape: tuple[int, ...], dtype: str) -> Any:
    return jnp.full(shape, 0.25, dtype)


def _optimisers() -> dict[str, Callable[[], Any]]:
    import optax  # asv imports this module, perhaps without optax

    schedule = optax.cosine_decay_schedule(1e-3, 100)
    clip = optax.clip_by_global_norm(1.0)
    return {
        "sgd": lambda: optax.sgd(1e-3),
        "momentum": lambda: optax.sgd(1e-3, momentum=0.9),
        "adam": lambda: optax.adam(1e-3),
        "clip and adamw": lambda: optax.chain(clip, optax.adamw(schedule)),
        "inject": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=1e-3),
        "multi steps": lambda: optax.MultiSteps(optax.adam(1e-3), 2),
    }


OPTIMISERS = ("sgd", "momentum", "adam", "clip and adamw", "inject", "multi steps")


@ft.cache
def _optimiser(name: str) -> Any:
    return _optimisers()[name]()


def _optimiser_state(name: str, params: Any) -> Any:
    return _optimiser(name).init(eqx.filter(params, eqx.is_inexact_array))


# --- the whole -----------------------------------------------------------------------


class Builder:
    """Builds the arguments of a program.

    **Arguments:**

    - `variant`: each number gives different statics.
    - `mutable_variant`: the same for statics that can be changed in place. By default
        `variant`.
    """

    def __init__(self, variant: int = 0, mutable_variant: int | None = None):
        self._variant = variant
        self._mutable = variant if mutable_variant is None else mutable_variant
        self._leaves = 0
        # Each static with its kind, and the number that it is changed to.
        self._changeable: list[tuple[str, Any, int]] = []

    def build(self, node: Node, i: int = 0) -> Any:
        """Build an argument, as instance `i` of a repeat."""
        if node.kind == "leaf":
            self._leaves += 1
            return _leaf(node.of, node.n, self._leaves % _POOL)
        if node.kind == "static":
            return self._static(node.of, i)
        if node.kind == "repeat":
            copies = [
                self.build(node.children[0], i * node.n + k) for k in range(node.n)
            ]
            return _repeated(node.of, copies)
        children = [self.build(child, i) for child in node.children]
        return NODES[node.kind](
            node, children, [self._static(s, i) for s in node.statics]
        )

    def _static(self, name: str, i: int) -> Any:
        kind = name.removesuffix("*")
        own = i if name.endswith("*") else 0
        if kind not in MUTABLE:
            return STATICS[kind](own + 7 * self._variant)
        out = STATICS[kind](own + 7 * self._mutable)
        self._changeable.append((kind, out, own + 7 * self._variant))
        return out

    def change(self) -> None:
        """Change all mutable statics in place to those of `variant`."""
        for kind, static, number in self._changeable:
            MUTABLE[kind](static, STATICS[kind](number))


def _repeated(of: str, copies: list[Any]) -> Any:
    if of == "dict":
        return {f"layer{i}": copy for i, copy in enumerate(copies)}
    return copies if of == "list" else tuple(copies)


# --- what a function sees ------------------------------------------------------------


def described(x: Any) -> str:
    """The text of all statics of a tree, so that a result can depend on them."""
    if is_array(x):
        return ""
    children, treedef = jtu.tree_flatten(x, is_leaf=lambda y: y is not x)
    if jtu.treedef_is_leaf(treedef):
        return repr(x)
    inside = [described(child) for child in children]
    if isinstance(x, eqx.Module):
        static = [f for f in dataclasses.fields(x) if f.metadata.get("static")]
        inside += [repr(getattr(x, f.name)) for f in static]
    elif isinstance(x, Registered | Data):
        inside.append(repr(x.aux))
    elif isinstance(x, dict):
        inside.append(repr(list(x)))
    return f"{type(x).__name__}({', '.join(inside)})"
