"""Calls an operation outside of jit, and a jitted function with a host callback.

Of that, the main thread multiplies matrices itself. It does so by code of oneDNN, of
which no signal handler may use the stack.
"""

import equinox as eqx
import jax
import jax.numpy as jnp


@eqx.filter_jit
def multiply(x):
    jax.debug.callback(int)
    return x.T @ x


def main():
    for n in range(6000):  # of a share that no slow import hides
        jnp.ones(n % 30)
    for _ in range(4000):
        multiply(jnp.ones((128, 128)))
    print("the program's own output")


main()
