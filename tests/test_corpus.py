"""The corpus, under `equinox.filter_jit` and under ours."""

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np
import pytest

import eqx_fastjit

from .corpus import CASES
from .errors import is_error_if_let_out


class _Raised:
    def __init__(self, error):
        self.type = type(error)
        self.is_error_if_let_out = is_error_if_let_out(error)


def _run(case, jit):
    traces = 0

    def traced():
        nonlocal traces
        traces += 1

    out = []
    for step in case(jit, traced):
        if callable(step):
            try:
                step = step()
            except Exception as e:
                step = _Raised(e)
            else:
                raise AssertionError("expected an exception")
        out.append((step, traces))
    return out


def _normal_type(x):
    # Internal classes have other names here: `BoundJit` for `Partial`, for example.
    cls = type(x)
    return cls.__name__ if "<locals>" in cls.__qualname__ else cls


def _same(a, b):
    if isinstance(a, _Raised) or isinstance(b, _Raised):
        assert type(a) is type(b)
        # Our exception may be a subclass.
        expected = eqx.EquinoxRuntimeError if a.is_error_if_let_out else a.type
        assert issubclass(b.type, expected), (a.type, b.type)
        return
    leaves_a, leaves_b = jtu.tree_leaves(a), jtu.tree_leaves(b)
    assert len(leaves_a) == len(leaves_b)
    for x, y in zip(leaves_a, leaves_b, strict=True):
        if eqx.is_array(x):
            assert type(x) is type(y)
            assert x.shape == y.shape
            assert x.dtype == y.dtype
            if isinstance(x, jax.Array):
                assert x.aval.weak_type == y.aval.weak_type
                assert x.committed == y.committed
                assert x.sharding == y.sharding
            if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
                x, y = jax.random.key_data(x), jax.random.key_data(y)
            np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
        else:
            assert _normal_type(x) == _normal_type(y)
            if not callable(x) and type(x).__eq__ is not object.__eq__:
                assert x == y or repr(x) == repr(y)
    shape_a = str(jtu.tree_structure(jtu.tree_map(lambda _: 0, a)))
    shape_b = str(jtu.tree_structure(jtu.tree_map(lambda _: 0, b)))
    assert _no_addresses(shape_a) == _no_addresses(shape_b)


def _no_addresses(text):
    import re

    return re.sub(r"0x[0-9a-f]+", "0x", text)


@pytest.fixture
def needs_equinox(name):
    """Equinox 0.13.2 permits newer versions of JAX that lack a name it needs."""
    if name == "filter_jvp":
        try:
            eqx.filter_jvp(lambda x: x, (1.0,), (1.0,))
        except AttributeError as e:
            pytest.skip(f"eqx.filter_jvp does not work here: {e}")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_same_as_equinox(name, needs_equinox):
    theirs = _run(CASES[name], eqx.filter_jit)
    ours = _run(CASES[name], eqx_fastjit.filter_jit)
    assert len(theirs) == len(ours)
    for i, ((a, traces_a), (b, traces_b)) in enumerate(zip(theirs, ours, strict=True)):
        try:
            _same(a, b)
        except AssertionError as e:
            raise AssertionError(f"step {i}: {e}\ntheirs: {a}\nours: {b}") from e
        assert traces_b == traces_a, f"step {i}: {traces_a} traces, ours {traces_b}"


def test_another_type_of_error_is_no_better():
    ours = _Raised(eqx.EquinoxRuntimeError())
    let_out = ValueError("INTERNAL: CpuCallback error: _EquinoxRuntimeError: negative")
    _same(_Raised(let_out), ours)
    for error in (ValueError("no"), KeyError("no"), jax.errors.JaxRuntimeError("no")):
        with pytest.raises(AssertionError, match="EquinoxRuntimeError"):
            _same(_Raised(error), ours)
