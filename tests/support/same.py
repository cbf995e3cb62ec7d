"""Results that are the same: structure, types, statics, arrays and where these are."""

import re

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np


def assert_same(got, want, *, committed=True, rtol=0.0):
    """Assert that two results are the same; with `committed`, also in that respect."""
    for x, y in zip(jtu.tree_leaves(got), jtu.tree_leaves(want), strict=True):
        if eqx.is_array(y):
            _assert_same_array(x, y, committed, rtol)
        else:
            assert _class(x) == _class(y)
            if not callable(x) and type(x).__eq__ is not object.__eq__:
                assert x == y or repr(x) == repr(y)
    assert _structure(got) == _structure(want)


def _assert_same_array(x, y, committed, rtol):
    assert (type(x), x.shape, x.dtype) == (type(y), y.shape, y.dtype)
    if isinstance(x, jax.Array):
        # `typeof` adds the mesh from the sharding, which an aval by itself may lack.
        assert jax.typeof(x) == jax.typeof(y)
        assert x.aval.weak_type == y.aval.weak_type
        assert x.sharding.is_equivalent_to(y.sharding, x.ndim), (x.sharding, y.sharding)
        assert not committed or x.committed == y.committed

    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x, y = jax.random.key_data(x), jax.random.key_data(y)
    if rtol:
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol / 10)
    else:
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def _class(x):
    """The class, or its name if it was defined by a case, which runs twice."""
    cls = type(x)
    return cls.__name__ if "<locals>" in cls.__qualname__ else cls


def _structure(tree):
    text = str(jtu.tree_structure(jtu.tree_map(lambda _: 0, tree)))
    return re.sub(r"0x[0-9a-f]+", "0x", text)
