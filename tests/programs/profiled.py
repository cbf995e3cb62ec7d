"""Calls two jitted functions, one of which donates; a third is a part of the first."""

import time

import equinox as eqx
import jax.numpy as jnp


@eqx.filter_jit
def inner(x):
    return 2 * x


@eqx.filter_jit
def step(x):
    return inner(x) + 1


@eqx.filter_jit(donate="all")
def update(state):
    return {"x": state["x"] + 1}


def main():
    x, state = jnp.ones(3), {"x": jnp.zeros(3)}
    for i in range(200):
        step(x)
        time.sleep(1e-3)  # of shorter loops, nothing is said of the device
        if i % 10 == 0:
            state = update(state)
    print("the program's own output")


main()
