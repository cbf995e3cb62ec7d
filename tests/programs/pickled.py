"""Pickles jitted functions of `__main__` with cloudpickle, or loads them."""

import pickle
import sys

import cloudpickle
import jax.numpy as jnp

from eqx_fastjit import filter_jit


if sys.argv[1] == "dump":

    @filter_jit
    def double(x):
        return x * 2 if x.ndim else double(x[None])

    class Model:
        @filter_jit
        def step(self, x):
            return double(x)

    assert pickle.loads(pickle.dumps(double)) is double
    with open(sys.argv[2], "wb") as file:
        cloudpickle.dump((double, Model.step), file)
else:
    with open(sys.argv[2], "rb") as file:
        double, step = pickle.load(file)
    assert double(jnp.array(2.0)) == 4
    assert step(None, jnp.array(3.0)) == 6
