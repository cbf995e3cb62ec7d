"""What the tests of the benchmarks share."""

import jax
import pytest


@pytest.fixture
def as_users_have_it():
    """JAX's default promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
