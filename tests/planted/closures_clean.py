"""The training step as everybody writes it: functions inside of functions.

What they read of one another has the names of the loop's own variables; one of them is
first inlined and then called by itself; and a layer that is called once under `grad`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax


@eqx.filter_jit
def forward(model, x):
    return jax.vmap(model)(x)


@eqx.filter_jit
def make_step(model, state, x, y):
    def loss(m):
        for _ in range(1):
            prediction = forward(m, x)
            error = jnp.tanh(prediction * prediction * (x - y) * (x - y) * prediction)
        return jnp.mean(jnp.stack([error, error, error, error, error]) ** 2)

    value, grads = eqx.filter_value_and_grad(loss)(model)
    updates, state = optim.update(grads, state)
    return eqx.apply_updates(model, updates), state, value


optim = optax.adam(1e-3)
model = eqx.nn.MLP(3, 3, 8, 2, key=jax.random.key(0))
state = optim.init(eqx.filter(model, eqx.is_array))
for i in range(4):
    x = jnp.full((5, 3), float(i))
    y = x + 1
    model, state, value = make_step(model, state, x, y)
forward(model, x)
