"""Recurrent networks, over a sequence by `scan`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax

from eqx_fastjit.bench._case import Makers
from eqx_fastjit.bench._contenders import filled, of_function, of_loop
from eqx_fastjit.bench._zoo._shared import training, waves


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


def gru() -> Makers:
    def loss(model: GRUClassifier, xs: jax.Array, ys: jax.Array) -> jax.Array:
        predicted = jax.vmap(model)(xs)[:, 0]
        return -jnp.mean(ys * jnp.log(predicted) + (1 - ys) * jnp.log(1 - predicted))

    model = filled(lambda: GRUClassifier(2, 8, key=jr.key(0)))
    batch = waves(4, 8, 2), jnp.array([0.0, 1.0, 1.0, 0.0])
    return training(loss, model, optax.adam(1e-3), *batch)


class StackedLSTM(eqx.Module):
    cells: tuple[eqx.nn.LSTMCell, ...]
    readout: eqx.nn.Linear

    def __init__(self, size: int, hidden: int, layers: int, *, key: jax.Array):
        key_readout, *keys = jr.split(key, 1 + layers)
        sizes = [size] + [hidden] * (layers - 1)
        self.cells = tuple(
            eqx.nn.LSTMCell(n, hidden, key=key)
            for n, key in zip(sizes, keys, strict=True)
        )
        self.readout = eqx.nn.Linear(hidden, size, key=key_readout)

    def initial_state(self) -> list[tuple[jax.Array, jax.Array]]:
        zeros = [jnp.zeros(cell.hidden_size) for cell in self.cells]
        return [(x, x) for x in zeros]

    def __call__(self, state: list, x: jax.Array):
        out = []
        for cell, before in zip(self.cells, state, strict=True):
            after = cell(x, before)
            out.append(after)
            x = after[0]
        return out, self.readout(x)


def lstm() -> Makers:
    """Forecasts: what was predicted is what is seen next."""

    def forecast(model: StackedLSTM, seen: jax.Array, steps: int) -> jax.Array:
        def see(state, x):
            return model(state, x)

        def step(carry, _):
            state, x = carry
            state, x = model(state, x)
            return (state, x), x

        state, _ = jax.lax.scan(see, model.initial_state(), seen)
        return jax.lax.scan(step, (state, seen[-1]), length=steps)[1]

    model = filled(lambda: StackedLSTM(2, 8, layers=3, key=jr.key(0)))
    return of_function(forecast, model, waves(8, 2), 4)


class Filter(eqx.Module):
    encoder: eqx.nn.MLP
    cell: eqx.nn.GRUCell
    decoder: eqx.nn.MLP

    def __init__(self, *, key: jax.Array):
        key_encoder, key_cell, key_decoder = jr.split(key, 3)
        self.encoder = eqx.nn.MLP(3, 8, 8, 1, key=key_encoder)
        self.cell = eqx.nn.GRUCell(8, 8, key=key_cell)
        self.decoder = eqx.nn.MLP(8, 3, 8, 1, jax.nn.relu, jnp.tanh, key=key_decoder)

    def __call__(self, hidden: jax.Array, x: jax.Array):
        hidden = self.cell(self.encoder(x), hidden)
        return hidden, self.decoder(hidden)


def online_filter() -> Makers:
    """It is called for each observation, with its state outside."""
    model = filled(lambda: Filter(key=jr.key(0)))

    def observe(hidden: jax.Array, model: Filter, x: jax.Array):
        return model(hidden, x)

    return of_loop(observe, (jnp.zeros(8),), (model, waves(3)))
