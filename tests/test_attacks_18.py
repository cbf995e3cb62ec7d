"""Regression tests: faults found in an eighteenth adversarial review: semantics."""

import typing

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.traces import count_traces


X = np.arange(3.0, dtype=np.float32)


class Scaled(eqx.Module):
    """Its `__init__` leaves fields to their defaults, of which one is a function."""

    w: jax.Array
    act: typing.Callable = lambda self, x: self.w * x
    n: int = eqx.field(static=True, default=2)

    def __init__(self, w, n=2):
        self.w, self.n = w, n


class WithSine(Scaled):
    act: typing.Callable = jnp.sin


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_a_function_as_the_default_of_a_field_that_is_not_set(engine):
    # Describing the call went from the module to `act`, a method bound to it, and to
    # the module again, until there was no memory left.
    f, traces = count_traces(lambda m, x: m.act(x) * m.n)
    for _ in range(2):
        np.testing.assert_array_equal(f(Scaled(jnp.asarray(X)), X), 2 * X * X)
    assert len(traces) == 1
    with pytest.raises(TypeError):  # it is called as a method, as in Equinox
        f(WithSine(jnp.asarray(X)), X)
    g, _ = count_traces(lambda m, x: m.act(x))
    np.testing.assert_array_equal(g(Scaled(X, (np.zeros(3),)), X), X * X)
    with pytest.raises(ValueError, match=r"\.n` holds an array"):
        g(Scaled(X, (np.zeros(3),)), X)
