"""A loop of JAX's, outside of jit, with a function that is made anew each time."""

import jax
import jax.numpy as jnp


def simulate(x, steps):
    # So many that XLA takes its time.
    def step(x, _):
        for i in range(60):
            x = jnp.sort(jnp.sin(x) * i)
        return x, None

    return jax.lax.scan(step, x, length=steps)[0]


xs = jnp.ones((4, 50))
for _ in range(5):
    xs = jax.vmap(lambda x: simulate(x, 3))(xs)
