"""Eight equal layers in a Python loop."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr


class Net(eqx.Module):
    layers: list

    def __call__(self, x):
        for layer in self.layers:
            x = x + jax.nn.gelu(layer(jnp.tanh(x)))
        return x


@eqx.filter_jit
def loss(net, x):
    return jnp.mean(jax.vmap(net)(x) ** 2)


keys = jr.split(jr.key(0), 8)
loss(Net([eqx.nn.Linear(6, 6, key=key) for key in keys]), jnp.ones((4, 6)))
