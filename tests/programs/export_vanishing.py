"""Saves functions of a class that no other process has, in both forms.

Argument: a folder for the files. Prints the results.
"""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp

import eqx_fastjit


class Model(eqx.Module):
    linear: eqx.nn.Linear

    def __call__(self, x):
        return self.linear(x)

    @eqx_fastjit.filter_jit
    def apply(self, x, n=2):
        return self(x) * n


model = Model(eqx.nn.Linear(3, 2, key=jax.random.key(0)))
functions = {
    "module": eqx_fastjit.filter_jit(model),
    "method": model.apply,
    "closure": eqx_fastjit.filter_jit(lambda x: jax.vmap(model)(x[None])[0]),
}
for name, f in functions.items():
    f.export(jnp.arange(3.0)).save(f"{sys.argv[1]}/{name}", compiled=True)
    print(f(jnp.arange(3.0)))
