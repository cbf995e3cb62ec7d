"""The steps are a scan; four layers are a Python loop; the training loop is outside."""

import equinox as eqx
import jax
import jax.numpy as jnp


@eqx.filter_jit
def simulate(model, x, force):
    def step(x, _):
        return x + 0.01 * jnp.sin(x) * force, None

    for layer in model.layers:
        x = layer(x)
    return jax.lax.scan(step, x, length=200)[0]


model = eqx.nn.MLP(3, 3, 3, 3, key=jax.random.key(0))
for _ in range(40):
    simulate(model, jnp.ones(3), jnp.ones(3))
