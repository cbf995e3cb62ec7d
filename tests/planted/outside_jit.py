"""A `scan` outside of jit, with a new function in each iteration."""

import jax
import jax.numpy as jnp


def simulate(x, steps):
    # Enough operations for XLA to take a while.
    def step(x, _):
        for i in range(60):
            x = jnp.sort(jnp.sin(x) * i)
        return x, None

    return jax.lax.scan(step, x, length=steps)[0]


xs = jnp.ones((4, 50))
for _ in range(5):
    xs = jax.vmap(lambda x: simulate(x, 3))(xs)
