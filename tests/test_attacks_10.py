"""Regression tests: faults found in a tenth review."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_fastjit


# --- donation ---


@pytest.mark.parametrize("transform", [jax.vjp, jax.linearize, jax.value_and_grad])
def test_a_transformed_call_may_return_what_it_donated(transform, engine):
    """Which raised that its buffer was deleted, though only the others were used."""

    @eqx_fastjit.filter_jit(donate="all")
    def step(x, y):
        return x, x + y

    def loss(x, y):
        return step(x, y)[1].sum()

    x, y = jnp.ones(3) * 2, np.ones(3, np.float32)
    if transform is jax.value_and_grad:
        value, (_, gradient) = transform(loss, (0, 1))(x, y)
        assert value == 9
        assert (gradient == 1).all()
    else:
        (_, total), _ = transform(step, x, y)
        assert (total == 3).all()
