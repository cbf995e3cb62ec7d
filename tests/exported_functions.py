"""Functions that `test_export.py` exports, and calls in processes that load them.

A module of its own: a process that loads a file imports the classes from here, and only
those. `FUNCTIONS` and `calls` are what the tests go through.
"""

import dataclasses
import enum
import functools as ft
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


@dataclasses.dataclass(frozen=True)
class Config:
    scale: float
    names: tuple[str, ...] = ("a",)


class Pair(NamedTuple):
    left: Any
    right: Any


@jax.tree_util.register_pytree_node_class
class Node:
    """A registered class, with static data."""

    def __init__(self, value, tag):
        self.value = value
        self.tag = tag

    def tree_flatten(self):
        return (self.value,), self.tag

    @classmethod
    def tree_unflatten(cls, tag, children):
        return cls(children[0], tag)


class Layer(eqx.Module):
    weight: jax.Array
    config: Config = eqx.field(static=True)
    mode: Mode = eqx.field(static=True)
    scale: float

    def __call__(self, x):
        return self.scale * self.config.scale * (x @ self.weight)


def _layer():
    return Layer(jnp.eye(3), Config(2.0), Mode.SLOW, 0.5)


def _x():
    return jnp.arange(6.0).reshape(2, 3)


def statics(layer, x, n=2, *, name="x"):
    """Statics of all kinds, in and out."""
    out = {"layer": layer, "pair": Pair(layer(x), (n, name)), "node": Node(x, "tag")}
    return out, [1.5, None, True, -0.0, b"\0", 1 + 2j, Mode.FAST, Config(1.0), jnp.float32]


def keys(key, x):
    key, other = jr.split(key)
    return key, x + jr.normal(other, x.shape), jr.split(key, 3)


def state(model, x, state):
    return jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(
        x, state
    )


def _state_arguments():
    model, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="ema")
    return model, _x(), state


def mlp(model, x):
    return jax.vmap(model)(x)


def _mlp_arguments():
    return eqx.nn.MLP(3, 2, 4, 1, key=jr.key(0)), _x()


def numpy_arguments(x, y):
    return x + y


def weak(x):
    """A weakly typed result."""
    return 2.0 * jnp.asarray(1.0), x


# Name: the function, what makes its arguments, options of `filter_jit`.
FUNCTIONS = {
    "statics": (statics, lambda: (_layer(), _x()), {}),
    "keys": (keys, lambda: (jr.key(3), _x()), {}),
    "state": (state, _state_arguments, {}),
    "mlp": (mlp, _mlp_arguments, {}),
    "numpy": (numpy_arguments, lambda: (np.ones(3, np.float32), np.float32(2)), {}),
    "weak": (weak, lambda: (_x(),), {}),
    "donated": (ft.partial(statics), lambda: (_layer(), _x()), {"donate": "all"}),
}
