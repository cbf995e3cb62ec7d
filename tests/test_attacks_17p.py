"""Regression tests: what whole programs showed, run as people would write them."""

import itertools
import textwrap
import typing

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from eqx_fastjit import engine as current_engine, filter_jit
from tests.doctor_reports import check_clean, reports_on_engines, START
from tests.test_no_python import python_calls
from tests.traces import count_traces


X = jnp.ones(3)

# Programs without a finding or a note.
CLEAN = {
    # There was a note on functions under plain `jax.jit`, of which there is none.
    "the_backward_pass_of_a_jitted_function": """
        @eqx.filter_jit
        def total(w, ys):
            return jax.lax.scan(lambda c, y: (w * c, c * y), w, ys)[1].sum()

        grads = eqx.filter_grad(lambda w: total(w, x))(x[0])
        """,
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    for name, text in CLEAN.items():
        (folder / f"{name}.py").write_text(START + textwrap.dedent(text))
    return reports_on_engines(folder)


@pytest.mark.parametrize("name", CLEAN)
def test_no_finding(name, engine, reports):
    check_clean(reports[engine][name])


class _Layer(eqx.Module):
    """Its own `__init__` leaves fields to the defaults of the class."""

    w: jax.Array
    bias: typing.Any = None
    scale: float = 2.0
    eps: float = 1e-5
    name: str = eqx.field(static=True, default="layer")

    def __init__(self, **values):
        self.w = X
        for name, value in values.items():
            setattr(self, name, value)

    def __call__(self, x):
        shift = 0.0 if self.bias is None else self.bias
        return self.scale * self.w * x + shift + len(self.name)


class _Holder(eqx.Module):
    layer: _Layer = eqx.field(static=True)


def _has(layer):
    names = ("bias", "scale", "eps", "name")
    return {name: getattr(layer, name) for name in names if name in vars(layer)}


def _layers():
    values = {"bias": X, "scale": 3.0, "eps": 1e-5, "name": "other"}
    # Also in another order.
    for n in range(5):
        for names in itertools.combinations(values, n):
            yield {name: values[name] for name in names}
            yield {name: values[name] for name in reversed(names)}
    # Of the same value as the default, and of one that stands elsewhere.
    yield from ({"scale": 2.0}, {"name": "layer"}, {"bias": None}, {"bias": 3.0})


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
@pytest.mark.parametrize("static", (False, True))
def test_fields_that_are_left_to_the_class(static):
    """An instance without a field is another than one that has its default."""

    def see(layer):
        layer = layer.layer if static else layer
        return _has(layer), layer(X)

    f, traces = count_traces(see)
    met = []
    for _ in range(2):
        for values in _layers():
            layer = _Layer(**values)
            has, out = f(_Holder(layer) if static else layer)
            expected = dict(sorted(_has(layer).items()))
            assert list(has) == list(expected)
            assert eqx.tree_equal(has, expected)
            assert (out == layer(X)).all()
            if has.keys() not in met:
                met.append(has.keys())
    assert len(met) == 16
    # One for each set of fields, which both orders share, and one for each other value.
    assert len(traces) == 20


def test_a_step_on_a_model_with_fields_that_are_left_to_the_class(engine):
    """Equinox gives such results further attributes."""

    def step(model, x):
        return jax.tree.map(lambda w: w + x if eqx.is_array(w) else w, model)

    theirs, (ours, traces) = eqx.filter_jit(step), count_traces(step)
    expected = got = [_Layer(), _Layer(scale=3.0), _Layer(bias=X, name="b")]
    for _ in range(3):
        expected, got = theirs(expected, X), ours(got, X)
        assert jax.tree.structure(got) == jax.tree.structure(expected)
        assert [list(vars(x)) for x in got] == [list(vars(x)) for x in expected]
        assert eqx.tree_equal(got, expected)
    assert len(traces) == 1


class _Wraps(eqx.Module):
    w: jax.Array


def test_a_wrapper_without_some_attributes_is_traced_once():
    """Equinox writes down, when it builds one anew, that it does not have them."""
    f, traces = count_traces(lambda m, x: m.w * x)
    model = _Wraps(X)
    object.__setattr__(model, "__doc__", "of a wrapper")
    for m in (model, jax.tree.map(lambda w: w, model)):
        f(m, X)
    assert len(traces) == 1


@pytest.mark.one_engine
def test_fields_that_are_left_to_the_class_need_no_python():
    """Each such Module took 1.5 us: 20 of them, four times the call."""
    if current_engine() != "native":
        pytest.skip("of the native engine")
    f = filter_jit(lambda layers, x: layers[0](x))
    once = filter_jit(lambda layers: layers)
    for layers in ([_Layer(), _Layer(scale=3.0)], once([_Layer(), _Layer(bias=X)])):
        for _ in range(3):
            f(layers, X)
            once(layers)
        assert python_calls(f, layers, X) == []
        assert python_calls(once, layers) == []
