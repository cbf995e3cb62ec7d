"""Parameters and statics in all the places where people put them."""

import dataclasses
import enum
import functools as ft
import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

from eqx_fastjit.bench._case import Makers
from eqx_fastjit.bench._contenders import filled, of_function
from eqx_fastjit.bench._zoo._shared import training


# --- no classes at all


def nested_parameters() -> Makers:
    """Dictionaries of lists of tuples, with the activations by their names."""
    rng = np.random.default_rng(0)

    def dense(activation: str | None) -> dict:
        weight = jnp.asarray(rng.normal(size=(8, 8)), jnp.float32)
        return {"weights": (weight, jnp.zeros(8)), "activation": activation}

    params = {
        "encoder": {"layers": [dense("relu"), dense("tanh"), dense("gelu")]},
        "decoder": {"layers": [dense("silu"), dense(None)]},
        "scaling": {"input": jnp.ones(()), "output": [jnp.ones(8), "multiply"]},
        "name": "autoencoder",
        "version": (1, 2, "beta"),
    }

    def run(layers: list[dict], x: jax.Array) -> jax.Array:
        for layer in layers:
            weight, bias = layer["weights"]
            x = weight @ x + bias
            if layer["activation"] is not None:
                x = getattr(jax.nn, layer["activation"])(x)
        return x

    def apply(params: dict, x: jax.Array) -> dict:
        latent = run(params["encoder"]["layers"], x * params["scaling"]["input"])
        out = run(params["decoder"]["layers"], latent)
        scale, how = params["scaling"]["output"]
        return {"latent": latent, "out": out * scale if how == "multiply" else out}

    return of_function(apply, params, jnp.ones(8))


# --- layers that each have a configuration


@dataclasses.dataclass(frozen=True)
class InitConfig:
    distribution: Literal["normal", "uniform"] = "normal"
    gain: float = 1.0


@dataclasses.dataclass(frozen=True)
class LayerConfig:
    name: str
    size: int
    residual: bool
    dropout: float
    activation: Callable[[jax.Array], jax.Array]
    init: InitConfig = dataclasses.field(default_factory=InitConfig)
    tags: tuple[str, ...] = ()


class ConfiguredLayer(eqx.Module):
    weight: jax.Array
    bias: jax.Array
    config: LayerConfig = eqx.field(static=True)

    def __init__(self, config: LayerConfig, *, key: jax.Array):
        shape = config.size, config.size
        self.weight = config.init.gain * jr.normal(key, shape)
        self.bias = jnp.zeros(config.size)
        self.config = config

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.config.activation(self.weight @ x + self.bias)
        return x + y if self.config.residual else y


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
                    init=InitConfig(gain=1 / (1 + i)),
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


# --- an activation of its own for each layer


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


def numpy_batches() -> Makers:
    """Batches as a data loader gives them."""

    def loss(model: eqx.nn.MLP, batch: dict[str, Any]) -> jax.Array:
        logits = jax.vmap(model)(batch["x"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
        return jnp.mean(losses)

    rng = np.random.default_rng(0)
    batch = {
        "x": rng.normal(size=(4, 8)).astype(np.float32),
        "y": rng.integers(0, 3, 4),
        "split": "train",
    }
    model = filled(lambda: eqx.nn.MLP(8, 3, 16, 2, key=jr.key(0)))
    return training(loss, model, optax.sgd(1e-3), batch)


# --- statics


class Pooling(enum.Enum):
    MEAN = "mean"
    MAX = "max"


class Precision(enum.IntEnum):
    HALF = 16
    SINGLE = 32


class Window(NamedTuple):
    size: int
    stride: int
    padding: str


class Stage(eqx.Module):
    weight: jax.Array
    gain: jax.Array
    pooling: Pooling = eqx.field(static=True)
    window: Window = eqx.field(static=True)
    precision: Precision = eqx.field(static=True)
    axes: tuple[int, ...] = eqx.field(static=True)
    flags: frozenset[str] = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = jnp.tanh(self.gain * (self.weight @ x)).astype(self.dtype)
        pool = jnp.mean if self.pooling is Pooling.MEAN else jnp.max
        pooled = pool(x.reshape(-1, self.window.stride), axis=self.axes)
        return x + jnp.repeat(pooled, self.window.stride) if self.flags else x


def enums() -> Makers:
    """Static fields that are enums, named tuples, sets and dtypes; all is trained."""
    rng = np.random.default_rng(0)
    model = [
        Stage(
            weight=jnp.asarray(rng.normal(size=(8, 8)), jnp.float32),
            gain=jnp.ones(()),
            pooling=Pooling.MEAN if i % 2 else Pooling.MAX,
            window=Window(size=2, stride=2 ** (i % 3), padding="same"),
            precision=Precision.SINGLE,
            axes=(1,),
            flags=frozenset({"residual", f"stage {i}"}),
            dtype=jnp.float32,
        )
        for i in range(6)
    ]

    def loss(model: list[Stage], x: jax.Array) -> jax.Array:
        for stage in model:
            x = stage(x)
        return jnp.mean(x**2)

    return training(loss, model, optax.lion(1e-4), jnp.ones(8))


_KINDS: tuple[Callable[[int], Any], ...] = (
    lambda i: i,
    lambda i: i / 3,
    lambda i: complex(i, 1),
    lambda i: i % 2 == 0,
    lambda i: f"option {i}",
    lambda i: f"blob {i}".encode(),
    lambda i: None if i % 3 else ...,
    lambda i: jax.lax.Precision.HIGHEST,
    lambda i: range(i),
    lambda i: np.dtype(np.float32),
    lambda i: jnp.bfloat16,
    lambda i: jax.nn.relu,
    lambda i: ft.partial(jnp.clip, min=-i, max=i),
    lambda i: operator.itemgetter(i),
    lambda i: Window(i, 1, "same"),
    lambda i: Pooling.MAX,
    lambda i: Precision.HALF,
    lambda i: frozenset({i, "a"}),
    lambda i: LayerConfig(f"layer {i}", i, True, 0.1, jnp.tanh),
    lambda i: int,
)


def statics_200() -> Makers:
    """One array, and 200 options of 20 kinds in a dictionary."""
    options = {f"option_{i}": _KINDS[i % len(_KINDS)](i) for i in range(200)}

    def apply(x: jax.Array, options: dict[str, Any]) -> jax.Array:
        return options["option_11"](x * options["option_0"] + options["option_1"])

    # By hand, they are a static argument: as a tuple, since `jax.jit` has to hash them.
    def by_hand() -> Callable[[], jax.Array]:
        items = tuple(options.items())
        jitted = jax.jit(lambda x, items: apply(x, dict(items)), static_argnums=1)
        return lambda: jitted(x, items)

    x = jnp.ones(8)
    return {**of_function(apply, x, options), "jit": by_hand}


# --- many models at once


def ensemble() -> Makers:
    @eqx.filter_vmap
    def make(key: jax.Array) -> eqx.nn.MLP:
        return eqx.nn.MLP(4, 2, 8, 2, key=key)

    @eqx.filter_vmap(in_axes=(eqx.if_array(0), None))
    def evaluate(model: eqx.nn.MLP, x: jax.Array) -> jax.Array:
        return model(x)

    def predict(models: eqx.nn.MLP, x: jax.Array):
        outputs = evaluate(models, x)
        return jnp.mean(outputs, axis=0), jnp.std(outputs, axis=0)

    models = filled(lambda: make(jr.split(jr.key(0), 5)))
    return of_function(predict, models, jnp.ones(4))


class Expert(eqx.Module):
    net: eqx.nn.MLP
    temperature: float
    name: str = eqx.field(static=True)


def experts() -> Makers:
    """A dictionary of networks, of which none is like another."""

    def make() -> dict[str, Expert]:
        return {
            f"expert_{i}": Expert(
                eqx.nn.MLP(4, 4, 4 + i, 1 + i % 2, key=key), 1.0 + 0.25 * i, f"no. {i}"
            )
            for i, key in enumerate(jr.split(jr.key(0), 6))
        }

    def mix(experts: dict[str, Expert], gate: eqx.nn.Linear, x: jax.Array) -> jax.Array:
        outputs = [e.net(x) / e.temperature for e in experts.values()]
        return jax.nn.softmax(gate(x)) @ jnp.stack(outputs)

    gate = filled(lambda: eqx.nn.Linear(4, 6, key=jr.key(1)))
    return of_function(mix, filled(make), gate, jnp.ones(4))
