"""Networks: transformers, a CNN, a recurrent one, LoRA, a neural ODE, a policy."""

import functools as ft
import math
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax

from benchmarks.case import Call, case, Makers
from benchmarks.contenders import (
    each,
    filled,
    FILTER_JITS,
    of_function,
    of_loop,
    training,
)


# --- a transformer -------------------------------------------------------------------


WIDTH, HEADS, LENGTH, VOCABULARY = 16, 2, 8, 32


class Block(eqx.Module):
    norm_1: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    norm_2: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP

    def __init__(self, width: int, heads: int, *, key: jax.Array):
        key_attention, key_mlp = jr.split(key)
        self.norm_1 = eqx.nn.LayerNorm(width)
        self.attention = eqx.nn.MultiheadAttention(heads, width, key=key_attention)
        self.norm_2 = eqx.nn.LayerNorm(width)
        self.mlp = eqx.nn.MLP(width, width, 2 * width, 1, jax.nn.gelu, key=key_mlp)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = jax.vmap(self.norm_1)(x)
        causal = jnp.tri(x.shape[0], dtype=bool)
        x = x + self.attention(y, y, y, mask=causal)
        return x + jax.vmap(self.mlp)(jax.vmap(self.norm_2)(x))


class GPT(eqx.Module):
    tokens: eqx.nn.Embedding
    positions: eqx.nn.Embedding
    blocks: list[Block]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(
        self,
        depth: int,
        width: int = WIDTH,
        heads: int = HEADS,
        length: int = LENGTH,
        *,
        key: jax.Array,
    ):
        key_tokens, key_positions, key_head, *keys = jr.split(key, 3 + depth)
        self.tokens = eqx.nn.Embedding(VOCABULARY, width, key=key_tokens)
        self.positions = eqx.nn.Embedding(length, width, key=key_positions)
        self.blocks = [Block(width, heads, key=key) for key in keys]
        self.norm = eqx.nn.LayerNorm(width)
        self.head = eqx.nn.Linear(width, VOCABULARY, use_bias=False, key=key_head)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        positions = jnp.arange(tokens.shape[0])
        x = jax.vmap(self.tokens)(tokens) + jax.vmap(self.positions)(positions)
        for block in self.blocks:
            x = block(x)
        return jax.vmap(lambda x: self.head(self.norm(x)))(x)


def _tokens(*shape: int) -> jax.Array:
    return jnp.arange(math.prod(shape)).reshape(shape) % VOCABULARY


def gpt_loss(model: GPT, tokens: jax.Array) -> jax.Array:
    """The loss of predicting each next token of a sequence."""
    logits, labels = model(tokens[:-1]), tokens[1:]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.mean(losses)


@case("zoo", "transformer of 6 blocks, inference")
def gpt() -> Makers:
    def logits(model: GPT, tokens: jax.Array) -> jax.Array:
        return jax.vmap(model)(tokens)

    model = filled(lambda: GPT(6, key=jr.key(0)))
    return of_function(logits, model, _tokens(1, LENGTH))


@case("zoo", "transformer of 6 blocks, AdamW step")
def gpt_adamw() -> Makers:
    model = filled(lambda: GPT(6, key=jr.key(0)))
    optimiser = optax.adamw(3e-4, weight_decay=0.1)
    return training(gpt_loss, model, optimiser, _tokens(LENGTH))


# --- a CNN, with the state of BatchNorm ----------------------------------------------


class CNN(eqx.Module):
    convs: list[eqx.nn.Conv2d]
    norms: list[eqx.nn.BatchNorm]
    head: eqx.nn.Linear

    def __init__(self, *, key: jax.Array):
        key_head, *keys = jr.split(key, 5)
        sizes = zip((3, 4, 4, 4), keys, strict=True)
        self.convs = [eqx.nn.Conv2d(n, 4, 3, padding=1, key=key) for n, key in sizes]
        self.norms = [eqx.nn.BatchNorm(4, "batch", mode="ema") for _ in keys]
        self.head = eqx.nn.Linear(4, 10, key=key_head)

    def __call__(self, x: jax.Array, state: eqx.nn.State):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x, state = norm(conv(x), state)
            x = jax.nn.relu(x)
        return self.head(jnp.mean(x, axis=(1, 2))), state


@case("zoo", "CNN with BatchNorm and its state, SGD step")
def cnn() -> Makers:
    def loss(model: CNN, state: eqx.nn.State, images: jax.Array, labels: jax.Array):
        batched = jax.vmap(model, (0, None), (0, None), axis_name="batch")
        logits, state = batched(images, state)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return jnp.mean(losses), state

    def step(model, state, opt_state, images, labels):
        grad = eqx.filter_value_and_grad(loss, has_aux=True)
        (value, state), grads = grad(model, state, images, labels)
        updates, opt_state = optimiser.update(grads, opt_state)
        return eqx.apply_updates(model, updates), state, opt_state, value

    model, state = filled(lambda: eqx.nn.make_with_state(CNN)(key=jr.key(0)))
    optimiser = optax.sgd(1e-3, momentum=0.9, nesterov=True)
    opt_state = optimiser.init(eqx.filter(model, eqx.is_inexact_array))

    images = jnp.sin(jnp.arange(96.0) / 7).reshape(2, 3, 4, 4)
    return of_loop(step, (model, state, opt_state), (images, jnp.array([3, 7])))


# --- a recurrent network -------------------------------------------------------------


class GRUClassifier(eqx.Module):
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear
    bias: jax.Array

    def __init__(self, inputs: int, hidden: int, *, key: jax.Array):
        key_cell, key_head = jr.split(key)
        self.cell = eqx.nn.GRUCell(inputs, hidden, key=key_cell)
        self.head = eqx.nn.Linear(hidden, 1, use_bias=False, key=key_head)
        self.bias = jnp.zeros(1)

    def __call__(self, xs: jax.Array) -> jax.Array:
        def step(hidden: jax.Array, x: jax.Array):
            return self.cell(x, hidden), None

        hidden, _ = jax.lax.scan(step, jnp.zeros(self.cell.hidden_size), xs)
        return jax.nn.sigmoid(self.head(hidden) + self.bias)


@case("zoo", "GRU classifier under scan, Adam step")
def gru() -> Makers:
    def loss(model: GRUClassifier, xs: jax.Array, ys: jax.Array) -> jax.Array:
        predicted = jax.vmap(model)(xs)[:, 0]
        return -jnp.mean(ys * jnp.log(predicted) + (1 - ys) * jnp.log(1 - predicted))

    model = filled(lambda: GRUClassifier(2, 8, key=jr.key(0)))
    xs, ys = jnp.sin(jnp.arange(64.0) / 7), jnp.array([0.0, 1.0, 1.0, 0.0])
    return training(loss, model, optax.adam(1e-3), xs.reshape(4, 8, 2), ys)


# --- LoRA ----------------------------------------------------------------------------


class LoRA(eqx.Module):
    """A layer that stays as it is, and a small one beside it that learns."""

    base: eqx.nn.Linear
    down: jax.Array
    up: jax.Array
    scale: float

    def __init__(self, base: eqx.nn.Linear, rank: int, alpha: float, *, key: jax.Array):
        self.base = base
        self.down = jr.normal(key, (rank, WIDTH)) / rank
        self.up = jnp.zeros((WIDTH, rank))
        self.scale = alpha / rank

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.base(x) + self.scale * (self.up @ (self.down @ x))


def _lora_layers(depth: int) -> list[LoRA]:
    return [
        LoRA(eqx.nn.Linear(WIDTH, WIDTH, key=key), 2, alpha=1.0 + i / 8, key=key)
        for i, key in enumerate(jr.split(jr.key(0), depth))
    ]


@case("zoo", "Adam step of LoRA, with another optimiser for the layers beside it")
def lora_step() -> Makers:
    def loss(model: list[LoRA], x: jax.Array) -> jax.Array:
        for layer in model:
            x = jax.nn.relu(layer(x))
        return jnp.mean(x**2)

    def beside(layers: list[LoRA]) -> list[jax.Array]:
        return [x for layer in layers for x in (layer.down, layer.up)]

    def label(params: list[LoRA]) -> list[LoRA]:
        frozen = jax.tree.map(lambda _: "frozen", params)
        return eqx.tree_at(beside, frozen, replace_fn=lambda _: "learns")

    by = {"learns": optax.adam(1e-3), "frozen": optax.set_to_zero()}
    optimiser = optax.multi_transform(by, label)
    model = filled(lambda: _lora_layers(6))
    return training(loss, model, optimiser, jnp.ones(WIDTH))


# --- a neural differential equation ---------------------------------------------------


class NeuralODE(eqx.Module):
    field: eqx.nn.MLP
    solver: diffrax.AbstractSolver
    controller: diffrax.AbstractStepSizeController

    def __call__(self, ts: jax.Array, start: jax.Array):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: self.field(y)),
            self.solver,
            t0=ts[0],
            t1=ts[-1],
            dt0=ts[1] - ts[0],
            y0=start,
            stepsize_controller=self.controller,
            saveat=diffrax.SaveAt(ts=ts),
            max_steps=64,
        )
        return solution.ys


@case("zoo", "neural ODE by Diffrax, which checks for errors and blocks")
def neural_ode() -> Makers:
    def solve(model: NeuralODE, ts: jax.Array, start: jax.Array):
        return model(ts, start)

    model = NeuralODE(
        filled(lambda: eqx.nn.MLP(2, 2, 8, 2, jax.nn.softplus, key=jr.key(0))),
        diffrax.Tsit5(),
        diffrax.PIDController(rtol=1e-3, atol=1e-6),
    )
    return of_function(solve, model, jnp.linspace(0, 1, 4), jnp.array([1.0, 0.5]))


# --- a policy -------------------------------------------------------------------------


@case("zoo", "RL policy with a jitted method and a typed key")
def policy() -> Makers:
    observation, key = jnp.ones(4), jr.key(1)

    def new(jit: Callable[..., Any]) -> Any:
        class Policy(eqx.Module):
            torso: eqx.nn.MLP
            mean: eqx.nn.Linear
            log_std: jax.Array
            bound: float

            @jit
            def act(self, observation: jax.Array, key: jax.Array) -> jax.Array:
                mean = self.mean(self.torso(observation))
                noise = jr.normal(key, mean.shape)
                action = mean + jnp.exp(self.log_std) * noise
                return jnp.clip(action, -self.bound, self.bound)

        keys = jr.split(jr.key(0))
        torso = eqx.nn.MLP(4, 16, 16, 2, jnp.tanh, key=keys[0])
        return Policy(torso, eqx.nn.Linear(16, 2, key=keys[1]), jnp.zeros(2), 1.0)

    def by_method(jit: Callable[..., Any]) -> Call:
        policy = filled(ft.partial(new, jit))
        return lambda: policy.act(observation, key)

    def act(policy: Any, observation: jax.Array, key: jax.Array) -> jax.Array:
        return policy.act(observation, key)

    plain = filled(ft.partial(new, lambda method: method))
    by_hand = of_function(act, plain, observation, key)
    return {**by_hand, **each(by_method, FILTER_JITS)}
