"""Calls an operation outside of jit, and a jitted function with a host callback.

Because of the callback, the main thread multiplies the matrices itself, in code of
oneDNN that uses the stack pointer for other memory.
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
