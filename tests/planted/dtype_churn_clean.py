"""Two precisions that are compared on purpose."""

import equinox as eqx
import jax.numpy as jnp


@eqx.filter_jit
def step(state, x):
    return state + x


for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
    state = jnp.zeros(3, dtype=dtype)
    for _ in range(3):
        state = step(state, jnp.ones(3, dtype=dtype))
