"""Optional arguments, passed in training and omitted in evaluation."""

import equinox as eqx
import jax
import jax.numpy as jnp


@eqx.filter_jit
def forward(x, key=None, mask=None):
    x = x if key is None else x + jax.random.normal(key, x.shape)
    return x if mask is None else x * mask


def run(**extra):
    forward(jnp.ones(2), **extra)


key = jax.random.key(0)
for _ in range(2):
    run(key=key)
    run()
    run(mask=jnp.ones(2))
    run(key=key, mask=jnp.ones(2))
