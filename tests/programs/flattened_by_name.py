"""Calls with an Equinox that flattens the fields of a Module by name."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from eqx_fastjit import filter_jit


def reverse(flatten):
    def flatten_in_reverse(x):
        children, aux = flatten(x)
        return children[::-1], aux

    return flatten_in_reverse


def register(cls, *, flatten_with_keys, flatten_func, unflatten_func):
    """As an Equinox of the future may register a Module."""
    jax_registers(
        cls,
        flatten_with_keys=reverse(flatten_with_keys),
        flatten_func=reverse(flatten_func),
        unflatten_func=lambda aux, children: unflatten_func(aux, [*children][::-1]),
    )


jax_registers, jtu.register_pytree_with_keys = jtu.register_pytree_with_keys, register


class Model(eqx.Module):
    scale: jax.Array
    bias: jax.Array


jtu.register_pytree_with_keys = jax_registers


f = filter_jit(lambda model, x: (model.scale * x + model.bias, model))
both = jnp.array(1)
f(Model(both, both), both)  # which does not tell the order
for _ in range(4):
    model = Model(jnp.array(2), jnp.array(100))
    assert [int(x) for x in jtu.tree_leaves(model)] == [100, 2]
    out, same = f(model, jnp.array(3))
    print(out, same.scale, same.bias)
