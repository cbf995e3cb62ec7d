"""Regression tests: faults found in an eleventh review."""

import collections
import copy
import pickle
import warnings

import cloudpickle
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_fastjit
from tests import exported_functions as functions


X = jnp.arange(3.0)
# Large enough to be kept in the file, rather than in the program.
TABLE = jnp.arange(512.0)


# --- loaded functions ---


@pytest.fixture(params=[False, True], ids=["portable", "compiled"])
def load(request, tmp_path):
    """Loads a function that has been exported for `X`."""

    def f(x, n=2):
        return x * n + TABLE[:3]

    path = tmp_path / "f.fastjit"
    eqx_fastjit.filter_jit(f).export(X).save(path, compiled=True)
    return lambda: eqx_fastjit.load(path, trusted=request.param)


def test_a_copy_of_a_loaded_function(load):
    """It returned the arguments: a tuple of one value for each parameter."""
    loaded = load()
    holder = {"predict": loaded, "x": X}
    for f in (copy.copy(loaded), copy.deepcopy(holder)["predict"]):
        assert (f(X) == 3 * X).all()
    for dumps in (pickle.dumps, cloudpickle.dumps):
        with pytest.raises((pickle.PicklingError, AttributeError)):
            dumps(loaded)


def test_a_loaded_function_has_no_python_function(load):
    """`__wrapped__` returned the arguments, and the others raised `AttributeError`."""
    loaded = load()
    for f in (loaded.__wrapped__, loaded.trace, loaded.lower, loaded.eval_shape):
        with pytest.raises(TypeError, match="f was loaded from a file"):
            f(X)
    with pytest.raises(TypeError, match="f was loaded from a file"):
        loaded.export(X)
    assert eqx.filter_eval_shape(loaded, X).shape == (3,)
    assert (loaded(X) == 3 * X).all()


@pytest.mark.parametrize(
    "transform",
    [
        jax.jit,
        eqx_fastjit.filter_jit,
        lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, length=1)[0],
    ],
    ids=["jit", "filter_jit", "scan"],
)
def test_a_file_that_is_loaded_in_a_trace(load, transform):
    """The arrays that the program keeps were tracers of it: later calls raised."""
    known = {}

    def predict(x):
        if "f" not in known:
            known["f"] = load()
        return known["f"](x)

    for f in (transform(predict), predict, jax.jit(predict)):
        assert (f(X) == 3 * X).all()


def test_arguments_on_another_device(load):
    """Native code takes none: it raised, though the file has the portable program."""
    loaded = load()
    device = jax.devices()[1]
    for _ in range(2):
        assert loaded(jax.device_put(X, device)).devices() == {device}
        assert (loaded(X) == 3 * X).all()


@pytest.mark.parametrize("trusted", [False, True], ids=["portable", "compiled"])
def test_gradients_with_numbers_of_64_bits(trusted, tmp_path):
    """Native code left the call to the portable form, which refused NumPy's float64."""
    f = eqx_fastjit.filter_jit(lambda x, y: (x * y).sum())
    y = np.arange(3.0)
    f.export(X, y).save(tmp_path / "f", vjp_order=1, compiled=True)
    loaded = eqx_fastjit.load(tmp_path / "f", trusted=trusted)
    for _ in range(2):
        assert (jax.grad(loaded)(X, y) == y).all()
        y += 1


def _both(x, y):
    return y, x


@pytest.mark.parametrize(
    "y",
    [
        ...,
        collections.OrderedDict(b=X, a=[1, X]),
        collections.defaultdict(list, b=X, a=2),
        functions.Data(functions.Node(X, "tag"), 1),
        [functions.Data(collections.OrderedDict(b=X, a=functions.Data(X, 2)), 1)],
    ],
    ids=["Ellipsis", "OrderedDict", "defaultdict", "dataclass", "nested"],
)
def test_arguments_that_could_not_be_exported(y, tmp_path):
    """`...` could, but calls with it raised: it was taken for a default."""
    f = eqx_fastjit.filter_jit(_both)
    f.export(X, y).save(tmp_path / "f")
    loaded = eqx_fastjit.load(tmp_path / "f", allow="tests")
    for _ in range(2):
        out, expected = loaded(X, y), f(X, y)
        assert eqx.tree_equal(out, expected) is not False
        assert jax.tree.structure(out) == jax.tree.structure(expected)
    with pytest.raises(TypeError):
        loaded(X, None)


@pytest.mark.parametrize("donate, n_warnings", [("all", 0), ("warn", 1)])
def test_a_donated_buffer_that_a_loaded_function_cannot_use(
    donate, n_warnings, tmp_path
):
    """It warned with `donate="all"`, too."""
    f = eqx_fastjit.filter_jit(lambda x, y: (x * y).sum(), donate=donate)
    with warnings.catch_warnings(record=True):
        f.export(X, X).save(tmp_path / "f")
    loaded = eqx_fastjit.load(tmp_path / "f")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            loaded(X + 0, X + 0)
    assert len(found) == n_warnings


# --- contexts ---


def test_ahead_of_time_without_jit(tmp_path):
    """The trace had no results, and what asked for their shapes raised `KeyError`."""
    f = eqx_fastjit.filter_jit(lambda x, n=2: {"y": x * n, "n": n})
    for _ in range(2):
        with jax.disable_jit():
            assert len(f.trace(X).jaxpr.jaxpr.outvars) == 1
            assert f.eval_shape(X)["y"].shape == f.lower(X).out_info["y"].shape == (3,)
            f.export(X).save(tmp_path / "f", compiled=True)
            assert (f(X)["y"] == 2 * X).all()
        assert (f(X)["y"] == 2 * X).all()
        assert (f.lower(X).compile()(X)["y"] == 2 * X).all()
    assert (eqx_fastjit.load(tmp_path / "f", trusted=True)(X)["y"] == 2 * X).all()
