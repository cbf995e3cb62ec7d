"""The same under jit; a model that is created outside of jit, by small operations."""

import equinox as eqx
import jax
import jax.numpy as jnp


def simulate(x, steps):
    def step(x, _):
        for i in range(60):
            x = jnp.sort(jnp.sin(x) * i)
        return x, None

    return jax.lax.scan(step, x, length=steps)[0]


xs = jnp.ones((4, 50))
simulate_all = eqx.filter_jit(jax.vmap(lambda x: simulate(x, 3)))
for _ in range(5):
    xs = simulate_all(xs)
model = eqx.nn.MLP(4, 4, 8, 3, key=jax.random.key(0))
print(jnp.mean(jax.vmap(model)(xs[:, :4])) * 0)
