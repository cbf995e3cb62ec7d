"""`eqx.nn.State`, which Equinox programs carry through calls."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from eqx_fastjit import filter_jit
from tests.support.traces import count_traces


X = jnp.arange(20.0).reshape(5, 4) ** 0.5


class Model(eqx.Module):
    norm: eqx.nn.BatchNorm
    linear: eqx.nn.Linear
    index: eqx.nn.StateIndex

    def __init__(self, mode):
        self.norm = eqx.nn.BatchNorm(4, axis_name="batch", mode=mode)
        self.linear = eqx.nn.Linear(4, 4, key=jr.key(0))
        self.index = eqx.nn.StateIndex(jnp.array(0))

    def __call__(self, x, state):
        x, state = self.norm(self.linear(x), state)
        return x, state.set(self.index, state.get(self.index) + 1)


def _step(model, state, x):
    vmapped = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    return vmapped(x, state)


@pytest.mark.parametrize("mode", ["batch", "ema"])
@pytest.mark.parametrize("donate", ["none", "all-except-first"])
def test_a_model_with_state(mode, donate):
    """State is carried through calls as under Equinox, with as many traces."""
    results = []
    for jit in (eqx.filter_jit, filter_jit):
        model, state = eqx.nn.make_with_state(Model)(mode)
        f, traces = count_traces(_step, jit, donate=donate)
        for _ in range(4):
            out, state = f(model, state, X + 0)
        results.append((out, state.get(model.index), len(traces)))
    (theirs, *expected), (ours, *found) = results
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert found == expected and found[0] == 4


def test_a_state_is_used_once():
    """An old state that was updated is an error, as without jit."""
    model, state = eqx.nn.make_with_state(Model)("batch")
    filter_jit(_step)(model, state, X)
    state.set(model.index, jnp.array(3))
    with pytest.raises(ValueError, match="old state"):
        filter_jit(_step)(model, state, X)
