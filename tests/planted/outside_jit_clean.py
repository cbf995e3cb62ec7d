"""A model is made outside of jit, by many small operations; the rest is jitted."""

import equinox as eqx
import jax
import jax.numpy as jnp


def simulate(x):
    def step(x, _):
        for i in range(15):
            x = jnp.sort(jnp.sin(x) * i)
        return x, None

    return jax.lax.scan(step, x, length=3)[0]


model = eqx.nn.MLP(4, 4, 8, 3, key=jax.random.key(0))
xs = eqx.filter_jit(jax.vmap(simulate))(jnp.ones((4, 4)))
ys = jax.vmap(model)(xs)
print(jnp.mean(ys) * 0)
