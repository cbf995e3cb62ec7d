"""A program that knows nothing of this library. Prints what it computes."""

import equinox as eqx
import jax
import jax.numpy as jnp


class Model(eqx.Module):
    mlp: eqx.nn.MLP
    scale: float

    @eqx.filter_jit
    def __call__(self, x):
        return jax.vmap(self.mlp)(x) * self.scale


@eqx.filter_jit(donate="all-except-first")
def step(batch, model):
    x, y = batch

    def loss(model):
        error = model(x) - y
        return jnp.mean(error**2)

    value, grads = eqx.filter_value_and_grad(loss)(model)
    updates = jax.tree.map(lambda g: -0.1 * g, grads)
    return value, eqx.apply_updates(model, updates)


# Training, with a method and donation.
mlp = eqx.nn.MLP(2, 1, 4, 0, key=jax.random.key(0))
model = Model(mlp, 0.5)
x, y = jnp.linspace(0.0, 1.0, 16).reshape(8, 2), jnp.ones((8, 1))
for _ in range(2):
    value, model = step((x, y), model)
    print(round(float(value), 4))

# Static arguments, keywords and defaults.
scale = eqx.filter_jit(lambda tree, n, key=None: (tree["b"] - tree["a"] * n, n, key))
tree = {"b": jnp.ones(2), "a": jnp.arange(2.0)}
for n in (1, 2, 1):
    print(scale(tree, n, key="same"))

# Ahead of time.
tree = {"b": 2.0, "a": jnp.ones(2)}
compiled = scale.lower(tree, 3).compile()
print(compiled(tree, 3))

# Errors of the device, and gradients.
checked = eqx.filter_jit(lambda x: eqx.error_if(x, x < 0, "negative"))
negative = jnp.array(-checked(1.0))
try:
    print(checked(negative))
except RuntimeError as e:
    print(type(e).__name__, "negative" in str(e))
print(jax.grad(lambda x: checked(x) ** 2)(3.0))
