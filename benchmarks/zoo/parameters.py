"""Parameters and static arguments, in the places where people put them."""

import dataclasses
import enum
import functools as ft
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from benchmarks.case import Call, case, Makers
from benchmarks.contenders import filled, of_function, of_loop


# --- no classes at all


_DIMENSIONS = {"query": (8, 8), "key": (8, 8), "value": (8, 8), "out": (8, 8)}
_DIMENSIONS |= {"up": (16, 8), "down": (8, 16), "scale": (8,), "bias": (8,)}


def _block(params: dict, x: jax.Array, keys: jax.Array, values: jax.Array):
    """A block of a transformer, on what it has seen so far."""
    attention, norm = params["attention"], params["norm"]
    y = jax.nn.standardize(x) * norm["scale"] + norm["bias"]
    weights = jax.nn.softmax(keys @ (attention["query"] @ y))
    x = x + attention["out"] @ (weights @ values)
    return x + params["mlp"]["down"] @ jax.nn.gelu(params["mlp"]["up"] @ x)


def _blocks(depth: int) -> dict:
    """The parameters of blocks, in the order in which people write them."""
    rng = np.random.default_rng(0)

    def some(*names: str) -> dict:
        drawn = {x: rng.normal(scale=0.3, size=_DIMENSIONS[x]) for x in names}
        return {name: jnp.asarray(x, jnp.float32) for name, x in drawn.items()}

    return {
        f"block_{i}": {
            "norm": some("scale", "bias"),
            "attention": some("query", "key", "value", "out"),
            "mlp": some("up", "down"),
        }
        for i in range(depth)
    }


@case("zoo", "a transformer of 12 blocks, its parameters in nested dictionaries")
def unsorted_parameters() -> Makers:
    def apply(params: dict, x: jax.Array) -> jax.Array:
        for i in range(12):
            block = params[f"block_{i}"]
            keys = x[None] @ block["attention"]["key"]
            values = x[None] @ block["attention"]["value"]
            x = _block(block, x, keys, values)
        return x

    return of_function(apply, _blocks(12), jnp.ones(8))


@case("zoo", "decoding by 6 blocks, with a cache of dictionaries")
def decoder_cache() -> Makers:
    def step(cache: dict, x: jax.Array, params: dict):
        layers, position = {}, cache["position"]
        for name, block in params.items():
            old, attention = cache["layers"][name], block["attention"]
            keys = old["keys"].at[position % 4].set(attention["key"] @ x)
            values = old["values"].at[position % 4].set(attention["value"] @ x)
            layers[name] = {"step": old["step"] + 1, "keys": keys, "values": values}
            x = _block(block, x, keys, values)
        return {"position": position + 1, "layers": layers}, x, x.sum()

    params, empty, zero = _blocks(6), jnp.zeros((4, 8)), jnp.zeros((), int)
    layers = {name: {"step": zero, "keys": empty, "values": empty} for name in params}
    cache = {"position": zero, "layers": layers}
    return of_loop(step, (cache, jnp.ones(8)), (params,))


# --- static arguments


def _with_static(fun: Callable[..., Any], static: Any, hashable: Any) -> Makers:
    """`fun` of an array and what is static, which `jax.jit` has to hash."""

    def by_hand() -> Call:
        jitted, hashed = jax.jit(fun, static_argnums=1), hashable(static)
        return lambda: jitted(x, hashed)

    x = jnp.ones(8)
    return {**of_function(fun, x, static), "jit": by_hand}


# --- layers that each have a configuration


@dataclasses.dataclass(frozen=True)
class LayerConfig:
    name: str
    size: int
    residual: bool
    dropout: float
    activation: Callable[[jax.Array], jax.Array]
    gain: float = 1.0
    tags: tuple[str, ...] = ()


class ConfiguredLayer(eqx.Module):
    weight: jax.Array
    bias: jax.Array
    config: LayerConfig = eqx.field(static=True)

    def __init__(self, config: LayerConfig, *, key: jax.Array):
        shape = config.size, config.size
        self.weight = config.gain * jr.normal(key, shape)
        self.bias = jnp.zeros(config.size)
        self.config = config

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.config.activation(self.weight @ x + self.bias)
        return x + y if self.config.residual else y


@case("zoo", "16 layers, each with its own configuration dataclass")
def configured_layers() -> Makers:
    def make() -> list[ConfiguredLayer]:
        return [
            ConfiguredLayer(
                LayerConfig(
                    name=f"layer_{i}",
                    size=8,
                    residual=i > 0,
                    dropout=0.1 * i,
                    activation=jax.nn.relu if i % 2 else jnp.tanh,
                    gain=1 / (1 + i),
                    tags=("hidden", f"stage_{i // 4}"),
                ),
                key=key,
            )
            for i, key in enumerate(jr.split(jr.key(0), 16))
        ]

    def apply(layers: list[ConfiguredLayer], x: jax.Array) -> jax.Array:
        for layer in layers:
            x = layer(x)
        return x

    return of_function(apply, filled(make), jnp.ones(8))


@case("zoo", "an array, and 20 configuration dataclasses as arguments")
def configurations_20() -> Makers:
    configs = [
        LayerConfig(f"layer_{i}", 8, i > 0, 0.1 * i, jnp.tanh, 1 / (1 + i), ("hidden",))
        for i in range(20)
    ]

    def apply(x: jax.Array, configs: list[LayerConfig]) -> jax.Array:
        for config in configs:
            x = config.activation(config.gain * x)
        return x

    return _with_static(apply, configs, tuple)


# --- a vocabulary


class Tagger(eqx.Module):
    """Scores each word of a sentence, and knows which words there are."""

    embedding: eqx.nn.Embedding
    head: eqx.nn.Linear
    words: tuple[str, ...] = eqx.field(static=True)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return jax.vmap(self.head)(jax.vmap(self.embedding)(tokens))


@case("zoo", "a model with a vocabulary of 200 words in a static field")
def vocabulary() -> Makers:
    words = tuple(f"word_{i}" for i in range(200))

    def make() -> Tagger:
        embedding = eqx.nn.Embedding(len(words), 8, key=jr.key(0))
        return Tagger(embedding, eqx.nn.Linear(8, 4, key=jr.key(1)), words)

    def apply(model: Tagger, tokens: jax.Array) -> jax.Array:
        return model(tokens)

    return of_function(apply, filled(make), jnp.arange(6))


# --- an activation of its own for each layer


@case("zoo", "8 MLPs, each with a different partial as activation")
def partial_activations() -> Makers:
    def make() -> list[eqx.nn.MLP]:
        slopes = [0.01 * (i + 1) for i in range(8)]
        return [
            eqx.nn.MLP(
                8, 8, 8, 1, ft.partial(jax.nn.leaky_relu, negative_slope=s), key=k
            )
            for s, k in zip(slopes, jr.split(jr.key(0), 8), strict=True)
        ]

    def apply(models: list[eqx.nn.MLP], x: jax.Array) -> jax.Array:
        for model in models:
            x = model(x)
        return x

    return of_function(apply, filled(make), jnp.ones(8))


# --- NumPy


@case("zoo", "weights as NumPy arrays")
def numpy_weights() -> Makers:
    """A model as it comes out of a file."""
    rng = np.random.default_rng(0)
    weights = {
        f"layers.{i}.{name}": rng.normal(size=shape).astype(np.float32)
        for i in range(4)
        for name, shape in (("weight", (8, 8)), ("bias", (8,)))
    }

    def apply(weights: dict[str, Any], x: jax.Array) -> jax.Array:
        for i in range(4):
            x = weights[f"layers.{i}.weight"] @ x + weights[f"layers.{i}.bias"]
            x = jax.nn.relu(x)
        return x

    return of_function(apply, weights, jnp.ones(8))


# --- 200 static arguments


class Pooling(enum.Enum):
    MEAN = "mean"
    MAX = "max"


_KINDS: tuple[Callable[[int], Any], ...] = (
    lambda i: i,
    lambda i: i / 3,
    lambda i: complex(i, 1),
    lambda i: i % 2 == 0,
    lambda i: f"option {i}",
    lambda i: None if i % 3 else ...,
    lambda i: jnp.bfloat16,
    lambda i: jax.nn.relu,
    lambda i: ft.partial(jnp.clip, min=-i, max=i),
    lambda i: Pooling.MAX,
    lambda i: frozenset({i, "a"}),
    lambda i: LayerConfig(f"layer {i}", i, True, 0.1, jnp.tanh),
)


@case("zoo", "an array, and a dictionary of 200 static arguments of 12 kinds")
def statics_200() -> Makers:
    options = {f"option_{i}": _KINDS[i % len(_KINDS)](i) for i in range(200)}

    def apply(x: jax.Array, options: Any) -> jax.Array:
        options = dict(options)
        return options["option_7"](x * options["option_0"] + options["option_1"])

    return _with_static(apply, options, lambda options: tuple(options.items()))
