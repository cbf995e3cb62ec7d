"""The same layers in a scan, and three others in a loop."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr


class Net(eqx.Module):
    layers: eqx.nn.Linear
    last: list

    def __call__(self, x):
        arrays, static = eqx.partition(self.layers, eqx.is_array)

        def apply(x, arrays):
            layer = eqx.combine(arrays, static)
            return x + jax.nn.gelu(layer(jnp.tanh(x))), None

        x, _ = jax.lax.scan(apply, x, arrays)
        for layer in self.last:
            x = x + jax.nn.gelu(layer(jnp.tanh(x)))
        return x


@eqx.filter_jit
def loss(net, x):
    return jnp.mean(jax.vmap(net)(x) ** 2)


keys = jr.split(jr.key(0), 8)
layers = eqx.filter_vmap(lambda key: eqx.nn.Linear(6, 6, key=key))(keys)
last = [eqx.nn.Linear(6, 6, key=key) for key in keys[:3]]
loss(Net(layers, last), jnp.ones((4, 6)))
