"""Regression tests: faults found in a tenth review: NumPy arguments and waiting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_fastjit
from eqx_fastjit import _blocking


N = 520
X = jnp.ones((N, N))


def _buffer(value):
    """An array that JAX reads in place, as it is aligned."""
    memory = np.empty(4 * N * N + 64, np.uint8)
    start = -memory.ctypes.data % 64
    out = memory[start : start + 4 * N * N].view(np.float32).reshape(N, N)
    out[:] = value
    return out


def _late(y):
    """`y`, which is read after the caller could have changed it."""
    one = jax.lax.fori_loop(0, 200_000, lambda _, x: jnp.tanh(x + 1), 1.0)
    return y * (1 + 0 * one)


@jax.custom_vjp
def _scaled_gradient(x, y):
    """Returns an argument as it is; what it computes is kept for the backward pass."""
    return x


_scaled_gradient.defvjp(lambda x, y: (x, _late(y)), lambda r, g: (g * r, None))


def _vjp(f, y):
    vjp = jax.vjp(lambda x: f(x, y), X)[1]
    return lambda: vjp(X)[0]


def _nested(f, y):
    vjp = jax.vmap(lambda x: jax.vjp(lambda x: f(x, y), x)[1])(X[None])
    return lambda: jax.vmap(lambda vjp, x: vjp(x)[0])(vjp, X[None])


def _numpy_returned(f, y):
    vjp = jax.vjp(lambda x: f(x, y), X)[1]
    return lambda: vjp((X, X))[0]


@pytest.mark.parametrize(
    "fun, transform",
    [
        (_scaled_gradient, _vjp),
        (_scaled_gradient, _nested),
        (lambda x, y: (y, _scaled_gradient(x, y)), _numpy_returned),
    ],
    ids=["vjp", "nested", "NumPy returned"],
)
def test_what_is_kept_for_the_backward_pass_is_computed_before_a_call_returns(
    fun, transform
):
    """The results were arguments, and so ready: the gradient was of later values."""
    f = eqx_fastjit.filter_jit(fun)
    for _ in range(2):
        y = _buffer(2.0)
        gradient = transform(f, y)
        y[:] = 3.0
        assert (gradient() == 2.0).all()


@pytest.mark.parametrize("transform", [jax.vmap, jax.grad])
def test_a_call_in_a_trace_waits_for_nothing(transform, monkeypatch):
    waited = []
    monkeypatch.setattr(_blocking.jax, "block_until_ready", waited.append)
    f = eqx_fastjit.filter_jit(lambda x, y: x)
    y = np.ones(1 << 19, np.float32)
    x = jnp.ones(3 if transform is jax.vmap else ())
    jax.jit(transform(lambda x: f(x, y)))(x)
    assert waited == []
    transform(lambda x: f(x, y))(x)
    assert len(waited) == 1
