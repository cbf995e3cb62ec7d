"""Regression tests: faults found in a ninth review: transformations and contexts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_fastjit
from eqx_fastjit import _blocking
from eqx_fastjit._jit import jitted_function


X = jnp.arange(1.0, 4.0)


def _double(x, y):
    """Has an argument for its first result, which eager gradients return as it is."""
    return x, y * 2


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, y: jax.jvp(lambda y: f(X, y), (X,), (y,)),
        lambda f, y: jax.jvp(jax.vmap(f, (None, 0)), (X, X), (X, y)),
        lambda f, y: jax.vmap(lambda t: jax.jvp(lambda y: f(X, y), (X[0],), (t,)))(y),
        lambda f, y: jax.vjp(lambda y: f(X, y), y)[0],
        lambda f, y: jax.vmap(lambda x: jax.vjp(lambda y: f(x, y), y)[0])(X),
    ],
    ids=["tangent", "batched value", "batched tangent", "gradient", "nested"],
)
def test_a_call_under_a_transformation_waits_for_what_reads_numpy(
    transform, monkeypatch
):
    """Tangents were not looked at, nor results other than the first."""
    waited = []
    block = jax.block_until_ready
    monkeypatch.setattr(
        _blocking.jax, "block_until_ready", lambda x: waited.append(len(x)) or block(x)
    )
    f = eqx_fastjit.filter_jit(_double)
    for _ in range(2):
        transform(f, np.ones(3, np.float32))
    assert waited == [2, 2]


def test_a_call_under_a_transformation_does_not_wait_for_others(waited):
    f = eqx_fastjit.filter_jit(lambda x, n: (x * 2, n))
    n = np.arange(3)
    zero = np.zeros(3, jax.dtypes.float0)
    for _ in range(2):
        jax.jvp(f, (X, jnp.asarray(n)), (X, zero))
        jax.grad(lambda x: f(x, X)[0].sum())(X)
        jax.vmap(f)(X, X)
    assert waited == []


def test_a_compiled_call_is_walked_in_python_only_if_it_differs(engine, monkeypatch):
    """It took up to three times as long as Equinox's."""
    f = eqx_fastjit.filter_jit(lambda m, x, n: m["w"] * x * n[0])
    model, n = {"w": X}, (2,)
    compiled = f.lower(model, X, n).compile()
    function = jitted_function(f)
    walks = []
    walk = function.walk
    monkeypatch.setattr(
        function, "walk", lambda *args, **kwargs: walks.append(1) or walk(*args)
    )
    for _ in range(2):
        assert (compiled(model, X, (2,)) == 2 * X**2).all()
        assert (compiled({"w": np.asarray(X)}, X, n=n) == 2 * X**2).all()
    assert len(walks) == (0 if engine == "native" else 4)
    for args in (
        (model, X, (3,)),
        (model, X, (2.0,)),
        (model, X[:2], n),
        (model, X.astype(jnp.int32), n),
        ({"w": X, "b": X}, X, n),
        (model, 2.0, n),
        (model, X, ({},)),
    ):
        with pytest.raises(TypeError, match=r"than it was lowered for|hashed"):
            compiled(*args)
    assert function.n_specializations() == 1
    f.clear_cache()
    for _ in range(2):
        assert (compiled(model, X, n) == 2 * X**2).all()
