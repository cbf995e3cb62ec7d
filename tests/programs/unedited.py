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
        return jnp.mean((model(x) - y) ** 2)

    value, grads = eqx.filter_value_and_grad(loss)(model)
    updates = jax.tree.map(lambda g: -0.1 * g, grads)
    return value, eqx.apply_updates(model, updates)


model = Model(eqx.nn.MLP(2, 1, 4, 0, key=jax.random.key(0)), 0.5)
batch = {"y": jnp.ones((8, 1)), "x": jnp.linspace(0.0, 1.0, 16).reshape(8, 2)}
for _ in range(2):
    value, model = step((batch["x"], batch["y"]), model)
    print(round(float(value), 4))

f = eqx.filter_jit(lambda tree, n, key=None: (tree["b"] - tree["a"] * n, n, key))
for n in (1, 2, 1):
    print(f({"b": jnp.ones(2), "a": jnp.arange(2.0)}, n, key="same"))

tree = {"b": 2.0, "a": jnp.ones(2)}
compiled = f.lower(tree, 3).compile()
print(compiled(tree, 3))

checked = eqx.filter_jit(lambda x: eqx.error_if(x, x < 0, "negative"))
try:
    print(checked(jnp.array(-checked(1.0))))
except RuntimeError as e:
    print(type(e).__name__, "negative" in str(e))
print(jax.grad(lambda x: checked(x) ** 2)(3.0))
