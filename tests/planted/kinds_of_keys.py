"""Keys made in two ways."""

import equinox as eqx
import jax.random as jr


@eqx.filter_jit
def noise(key):
    return jr.normal(key, (3,))


for key in (jr.PRNGKey(0), jr.key(1)):
    noise(key)
