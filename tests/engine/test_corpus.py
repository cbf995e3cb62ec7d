"""Calls do what they do under `equinox.filter_jit`.

Promises 1, 2, 12, 35 of docs/reliability.md.

Results, dtypes, weak types, shardings, numbers of traces and deleted buffers are the
same: all of `tests/support/corpus.py`.
"""

import re

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np
import pytest

import eqx_fastjit
from tests.support.corpus import CASES


def _run(case, jit):
    """Each result, and how often the function was traced until then."""
    traces = []
    steps = case(jit, lambda: traces.append(None))
    return [(step, len(traces)) for step in steps]


def _assert_same(theirs, ours):
    their_leaves, our_leaves = jtu.tree_leaves(theirs), jtu.tree_leaves(ours)
    for x, y in zip(their_leaves, our_leaves, strict=True):
        if eqx.is_array(x):
            _assert_same_array(x, y)
        else:
            assert _class(x) == _class(y)
            if not callable(x) and type(x).__eq__ is not object.__eq__:
                assert x == y or repr(x) == repr(y)
    assert _structure(theirs) == _structure(ours)


def _assert_same_array(x, y):
    assert (type(x), x.shape, x.dtype) == (type(y), y.shape, y.dtype)
    if isinstance(x, jax.Array):
        assert x.aval.weak_type == y.aval.weak_type
        assert (x.committed, x.sharding) == (y.committed, y.sharding)
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x, y = jax.random.key_data(x), jax.random.key_data(y)
    np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def _class(x):
    """The class, or its name if it was defined by a case, which runs twice."""
    cls = type(x)
    return cls.__name__ if "<locals>" in cls.__qualname__ else cls


def _structure(tree):
    text = str(jtu.tree_structure(jtu.tree_map(lambda _: 0, tree)))
    return re.sub(r"0x[0-9a-f]+", "0x", text)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_same_as_equinox(name):
    """Each call of the case gives what it gives under Equinox."""
    theirs = _run(CASES[name], eqx.filter_jit)
    ours = _run(CASES[name], eqx_fastjit.filter_jit)
    assert len(theirs) == len(ours)
    for i, ((a, traces_a), (b, traces_b)) in enumerate(zip(theirs, ours, strict=True)):
        try:
            _assert_same(a, b)
        except AssertionError as e:
            raise AssertionError(f"step {i}: {e}\ntheirs: {a}\nours: {b}") from e
        assert traces_b == traces_a, f"step {i}: {traces_a} traces, ours {traces_b}"
