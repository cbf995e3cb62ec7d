"""Regression tests: faults found in a tenth review."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_fastjit
from eqx_fastjit import _callables


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


# --- what is kept of functions ---


def test_wrapping_in_a_callback_of_the_collector_ends(engine, monkeypatch):
    """All functions that were known were gone, but counted until it returned."""
    monkeypatch.setattr(_callables, "_described", weakref.WeakKeyDictionary())
    monkeypatch.setattr(_callables, "_MAX_FUNCTIONS", 3)
    results = []

    def wrap(_):
        results.append(eqx_fastjit.filter_jit(lambda x: x + 1)(1))

    def make():
        cycle = []
        for _ in range(4):

            def function(x):
                return cycle, x

            cycle.append(function)
        # The collector calls these before most of those of the library.
        references = [weakref.ref(x, wrap) for x in cycle]
        for x in cycle:
            eqx_fastjit.filter_jit(x)
        return references

    references = make()
    gc.collect()
    assert results == [2] * len(references)
