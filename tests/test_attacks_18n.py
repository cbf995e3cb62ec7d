"""Regression tests: faults found in an eighteenth review: memory of NumPy, structs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import filter_jit


X = jnp.ones(3)


def _aligned(shape):
    """A NumPy array whose memory JAX shares on the CPU."""
    n = int(np.prod(shape))
    raw = np.zeros(n + 32, np.float32)
    start = (-raw.ctypes.data % 64) // 4
    return raw[start : start + n].reshape(shape)


def _quick(f, x):
    """Call until calls are known to be done when they return."""
    f(X)
    for _ in range(40):
        f(x)


# --- NumPy arrays that are not copied -------------------------------------------------


def _in_jit(g):
    return jax.jit(lambda y: y * g())(1.0)


def _in_scan(g):
    return jax.lax.scan(lambda c, _: (c, g()), 0.0, length=2)[1][0]


def _in_a_checkpoint(g):
    """The constants are read in the backward pass."""
    y, backward = jax.vjp(jax.checkpoint(lambda w: w * g()), X)
    return backward(jnp.ones_like(y))[0]


@pytest.mark.parametrize("call", [_in_jit, _in_scan, _in_a_checkpoint])
def test_numpy_arrays_that_are_constants_of_another_trace(call):
    """They were not copied either after calls that were done when they returned."""
    f, x = filter_jit(lambda x: x * 2), _aligned((3,))
    _quick(f, x)

    def g():
        out = []
        for i in range(1, 4):
            x[:] = i
            out.append(f(x))
        x[:] = -1
        return out[0] + 10 * out[1] + 100 * out[2]

    assert call(g).tolist() == [642.0] * 3
    x[:] = 4  # and outside of traces still
    assert f(x).tolist() == [8.0] * 3


def _chain(x):
    y = x
    for _ in range(6):
        y = jnp.tanh(y @ x / x.shape[0])
    return y * 0 + x


@pytest.mark.skipif(not hasattr(jax, "new_ref"), reason="of newer versions of JAX")
@pytest.mark.parametrize("how", ["large", "after quick calls", "compiled"])
def test_numpy_arrays_that_only_a_reference_is_written_from(how):
    """There is no result to wait for, so the call did not."""
    n = 400 if how == "after quick calls" else 700
    refs = {size: jax.new_ref(jnp.zeros((size, size))) for size in (3, n)}

    @filter_jit
    def f(x):
        y = _chain(x)
        refs.get(len(x), refs[3])[...] = y
        return y if len(x) == 3 else None

    x, got = _aligned((n, n)), []
    if how == "after quick calls":
        for _ in range(40):
            f(_aligned((3, 3)))
    call = f.lower(x).compile() if how == "compiled" else f
    for i in range(1, 5):
        x[:] = i
        assert call(x) is None
        x[:] = -1
        got.append(refs[n][...])
    assert [(float(y.min()), float(y.max())) for y in got] == [
        (i, i) for i in range(1, 5)
    ]


# --- structs --------------------------------------------------------------------------


class Holder(eqx.Module):
    x: jax.Array
    static: object = eqx.field(static=True)


@pytest.mark.parametrize("beside", [(), ([1],)], ids=["alone", "beside a list"])
def test_structs_with_dimensions_of_other_types(beside):
    """`==` of two of them does not ask, so they shared a trace: an array of int8 times
    NumPy's 2 is one of int64."""
    traced = []

    def function(holder, struct):
        traced.append(1)
        sizes = holder.static[0].shape[0], struct.shape[0]
        return holder.x, [type(size).__name__ for size in sizes]

    f = filter_jit(function)
    for _ in range(2):
        for size in (2, np.int64(2), 2.0):
            struct, again = (jax.ShapeDtypeStruct((size,), "float32") for _ in range(2))
            _, names = f(Holder(X, (struct, *beside)), again)
            assert names == [type(size).__name__] * 2
    assert len(traced) == 3
