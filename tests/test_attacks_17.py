"""Regression tests: faults found in a seventeenth adversarial review: semantics."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from eqx_fastjit import filter_jit


X = np.arange(3.0, dtype=np.float32)


class Scaled(eqx.Module):
    """With a jitted method."""

    w: jax.Array

    @filter_jit
    def scale(self, x):
        return self.w * x


def test_a_bound_method_as_an_attribute_of_a_class():
    """From Python 3.14 on, a `functools.partial` there is bound to the instance."""
    bound = Scaled(jnp.full((), 2.0)).scale

    class Program:
        scale = bound

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Python 3.13 warns of it
        np.testing.assert_array_equal(Program().scale(X), 2 * X)
        np.testing.assert_array_equal(Program.scale(X), 2 * X)
