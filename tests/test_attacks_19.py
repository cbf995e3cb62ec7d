"""Regression tests: faults found in a nineteenth adversarial review: semantics."""

import copy

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

from eqx_fastjit import filter_jit


X = np.arange(3.0, dtype=np.float32)


class Scaled(eqx.Module):
    """Its `__init__` leaves a field to its default."""

    w: jax.Array
    n: int = eqx.field(static=True, default=2)

    def __init__(self, w):
        self.w = w

    def __call__(self, x):
        return self.w * x * self.n


@pytest.mark.parametrize(
    "wrap", [lambda f: f, filter_jit, eqx.filter_vmap, eqx.filter_checkpoint]
)
def test_wrapping_a_module_that_lacks_fields_and_was_built_again(wrap, engine):
    # Equinox then gives it a `__name__` and the like that are no strings, and its own
    # `filter_jit` raises: after any `eqx.apply_updates`, say.
    first = Scaled(jnp.asarray(X))
    model = jtu.tree_map(lambda x: x, first)
    for each in (first, model):
        f = filter_jit(wrap(each))
        for again in (f, copy.deepcopy(f), jtu.tree_map(lambda x: x, f)):
            out = again(X)  # `filter_vmap` maps both
            np.testing.assert_array_equal(
                jnp.diag(out) if out.ndim > 1 else out, 2 * X * X
            )
    assert filter_jit(model).__name__ == "Scaled"
    assert filter_jit(model).__doc__ == Scaled.__doc__
    assert filter_jit(model)._function is filter_jit(first)._function
