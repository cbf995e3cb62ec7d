"""Sequences of several lengths: a mean, a recurrent state and the last element."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


@eqx.filter_jit
def summary(x):
    for _ in range(40):
        x = jnp.sin(x) + 0.1 * x
    state, _ = jax.lax.scan(lambda h, v: (jnp.tanh(h + v), None), jnp.zeros(4), x)
    return x.mean(), state.sum(), x[-1].sum()


for n in (5, 6, 7):
    x = np.linspace(0, 1, 4 * n, dtype=np.float32).reshape(n, 4)
    mean, state, last = summary(x)  # finding
    print(f"{float(mean):.4f} {float(state):.4f} {float(last):.4f}")
