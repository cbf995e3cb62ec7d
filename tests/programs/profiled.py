"""Calls a jitted function 200 times, and an operation outside of jit far more often."""

import time

import equinox as eqx
import jax.numpy as jnp


@eqx.filter_jit
def step(x):
    return 2 * x + 1


def main():
    for n in range(6000):  # of a share that no slow import hides
        x = jnp.ones(n % 30)
    for _ in range(200):
        step(x)
        time.sleep(1e-3)  # of shorter loops, nothing is said of the device
    print("the program's own output")


main()
