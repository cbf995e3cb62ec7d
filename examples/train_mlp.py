"""Trains an MLP by optax: a step under `filter_jit`, without faults.

`eqx-fastjit doctor examples/train_mlp.py` finds nothing to fix: the optimiser is made
once, all batches have one size and are taken within the step, and the loss is read once
per epoch.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from eqx_fastjit import filter_jit


BATCH = 64


def dataset(
    n: int, key: PRNGKeyArray
) -> tuple[Float[Array, "n 2"], Float[Array, " n"]]:
    x = jr.uniform(key, (n, 2), minval=-1.0, maxval=1.0)
    return x, jnp.sin(3 * x[:, 0]) * x[:, 1]


def loss(
    model: eqx.nn.MLP, x: Float[Array, "batch 2"], y: Float[Array, " batch"]
) -> Float[Array, ""]:
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


optim = optax.adam(3e-3)


@filter_jit(donate="all-except-first")
def step(
    data: tuple[Float[Array, "n 2"], Float[Array, " n"], Int[Array, " batch"]],
    model: eqx.nn.MLP,
    state: optax.OptState,
) -> tuple[eqx.nn.MLP, optax.OptState, Float[Array, ""]]:
    x, y, rows = data
    value, grads = eqx.filter_value_and_grad(loss)(model, x[rows], y[rows])
    updates, state = optim.update(grads, state)
    return eqx.apply_updates(model, updates), state, value


def main(epochs: int = 10) -> None:
    x, y = dataset(1024, jr.key(0))
    model = eqx.nn.MLP(2, "scalar", 32, 2, key=jr.key(1))
    state = optim.init(eqx.filter(model, eqx.is_array))
    for epoch in range(epochs):
        order = jr.permutation(jr.key(epoch), len(x))
        for rows in order.reshape(-1, BATCH):
            model, state, value = step((x, y, rows), model, state)
        print(f"epoch {epoch}: loss {value:.4f}")


main()
