"""Padded to one length, with the true length: masked, and read at its end."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


SIZE = 8


@eqx.filter_jit
def summary(x, length):
    for _ in range(40):
        x = jnp.sin(x) + 0.1 * x
    real = jnp.arange(SIZE) < length

    def update(h, item):
        v, is_real = item
        return jnp.where(is_real, jnp.tanh(h + v), h), None

    state, _ = jax.lax.scan(update, jnp.zeros(4), (x, real))
    mean = x.mean(axis=1, where=real[:, None]).sum(where=real) / length
    return mean, state.sum(), x[length - 1].sum()


for n in (5, 6, 7):
    x = np.linspace(0, 1, 4 * n, dtype=np.float32).reshape(n, 4)
    padded = np.pad(x, ((0, SIZE - n), (0, 0)))
    mean, state, last = summary(padded, length=jnp.asarray(n))
    print(f"{float(mean):.4f} {float(state):.4f} {float(last):.4f}")
