"""Trains a recurrent network to tell which way spirals turn.

An ordinary program, with faults that are easily made: some compile it again, and others
cost time in each step. `eqx-fastjit doctor examples/faulty_train.py` finds them.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax


class RNN(eqx.Module):
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __init__(self, hidden, *, key):
        cell_key, head_key = jr.split(key)
        self.cell = eqx.nn.GRUCell(2, hidden, key=cell_key)
        self.head = eqx.nn.Linear(hidden, "scalar", key=head_key)

    def __call__(self, xs):
        def step(state, x):
            return self.cell(x, state), None

        state, _ = jax.lax.scan(step, jnp.zeros(self.cell.hidden_size), xs)
        return self.head(state)


def spirals(n, key, length=16):
    t = jnp.linspace(0, 2 * jnp.pi, length)
    offset = jr.uniform(key, (n, 1), maxval=2 * jnp.pi)
    turns = jnp.where(jnp.arange(n) % 2, 1.0, -1.0)[:, None]
    angle = turns * t + offset
    xs = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1) * t[:, None]
    return xs, jnp.arange(n) % 2


def batches(xs, ys, size):
    for start in range(0, len(xs), size):
        yield xs[start : start + size], ys[start : start + size]


@eqx.filter_value_and_grad
def loss_and_grads(model, xs, ys):
    logits = jax.vmap(model)(xs)
    return optax.sigmoid_binary_cross_entropy(logits, ys).mean()


@eqx.filter_jit
def train_step(model, xs, ys, rate):
    loss, grads = loss_and_grads(model, xs, ys)
    updates = jax.tree_util.tree_map(lambda g: -rate * g, grads)
    return eqx.apply_updates(model, updates), loss


def main():
    xs, ys = spirals(100, jr.key(0))
    model, key = RNN(8, key=jr.key(1)), jr.key(2)
    rate = 0.1
    for epoch in range(1000):
        for batch, labels in batches(xs, ys, 32):
            key, noise_key = jr.split(key)
            noisy = batch + 0.3 * jr.normal(noise_key, batch.shape)
            model, loss = train_step(model, noisy, labels, rate)
        if epoch % 250 == 249:
            rate *= 0.9
            print(f"epoch {epoch}: loss {loss:.3f}")


main()
