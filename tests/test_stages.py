"""`lower`, `trace`, `eval_shape`, `compile` and compiled calls."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import Compiled, filter_jit, Lowered, Traced


def _model(seed=0):
    return eqx.nn.MLP(3, 3, 4, 2, key=jax.random.key(seed))


@filter_jit
def forward(model, x, scale=2):
    return model(x) * scale, scale, {"x": x}


def test_stages_agree_with_a_call():
    model, x = _model(), jnp.ones(3)
    traced = forward.trace(model, x)
    lowered = traced.lower()
    compiled = lowered.compile()
    assert [type(s) for s in (traced, lowered, compiled)] == [Traced, Lowered, Compiled]
    assert "stablehlo" in lowered.as_text()
    assert "dot_general" in str(traced.jaxpr)
    assert compiled.cost_analysis() is not None
    assert compiled.memory_analysis() is not None
    assert "forward" in repr(compiled)
    assert eqx.tree_equal(compiled(model, x), forward(model, x))
    assert eqx.tree_equal(compiled(x=x, model=_model(1)), forward(_model(1), x))
    with pytest.raises(AttributeError, match="no_such_thing"):
        compiled.no_such_thing  # noqa: B018


def test_same_as_equinox_lowered():
    model, x = _model(), jnp.ones(3)
    theirs = eqx.filter_jit(forward.__wrapped__).lower(model, x, scale=3).compile()
    ours = forward.lower(model, x, scale=3).compile()
    assert eqx.tree_equal(theirs(model, x, scale=3), ours(model, x, scale=3))


def test_shapes_stand_for_arrays():
    model = eqx.filter_eval_shape(_model)
    x = jax.ShapeDtypeStruct((3,), jnp.float32)
    out, scale, rest = forward.eval_shape(model, x)
    assert out == jax.ShapeDtypeStruct((3,), jnp.float32)
    assert scale == 2
    assert rest["x"].shape == (3,)
    compiled = forward.lower(model, x).compile()
    assert compiled.out_info[0].shape == (3,)
    real = _model(), jnp.ones(3)
    assert eqx.tree_equal(compiled(*real), forward(*real))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (lambda m, x: (m, x, 3), "the static `scale` was 2 and is now 3"),
        (lambda m, x: (m, x, 2.0), "the static `scale` was 2 and is now 2.0"),
        (lambda m, x: (m, x[:2], 2), r"`x` was float32\[3\] and is now float32\[2\]"),
        (lambda m, x: (m, x.astype(int), 2), r"is now int32\[3\]"),
        (lambda m, x: (m, 1.0, 2), "`x` was an array and is now static"),
        (lambda m, x: (m, x, x), "`scale` was the static 2 and is now an array"),
        (lambda m, x: (m, (x,), 2), r"expected `x`, got `x\[0\]`"),
        (
            lambda m, x: (eqx.tree_at(lambda m: m.layers[1].bias, m, None), x, 2),
            r"expected `model.layers\[1\].bias`",
        ),
        (
            lambda m, x: (eqx.tree_at(lambda m: m.activation, m, jnp.tanh), x, 2),
            "static `model.activation`",
        ),
        (lambda m, x: (_Other(m.layers[0]), x, 2), "expected `model"),
    ],
)
def test_a_compiled_call_refuses_others(args, message):
    model, x = _model(), jnp.ones(3)
    compiled = forward.lower(model, x).compile()
    with pytest.raises(TypeError, match=message):
        compiled(*args(model, x))
    compiled(model, x)


class _Other(eqx.Module):
    layer: eqx.nn.Linear


def test_static_field_in_a_compiled_call():
    class M(eqx.Module):
        w: jax.Array
        n: int = eqx.field(static=True)

    f = filter_jit(lambda m: m.w * m.n)
    compiled = f.lower(M(jnp.ones(2), 2)).compile()
    with pytest.raises(TypeError, match="structure"):
        compiled(M(jnp.ones(2), 3))


def test_methods_and_callables():
    class M(eqx.Module):
        w: jax.Array

        @filter_jit
        def step(self, x, n=1):
            return self.w * x + n

    m, x = M(jnp.ones(2)), jnp.ones(2)
    compiled = m.step.lower(x).compile()
    assert compiled(x).tolist() == [2, 2]
    assert M.step.lower(m, x, 2).compile()(m, x, 2).tolist() == [3, 3]
    assert m.step.eval_shape(x).shape == (2,)
    model = _model()
    compiled = filter_jit(model).lower(jnp.ones(3)).compile()
    np.testing.assert_allclose(compiled(jnp.ones(3)), model(jnp.ones(3)), rtol=1e-6)


@pytest.mark.parametrize("donate", ["all", "all-except-first"])
def test_donation(donate):
    f = filter_jit(lambda x, y: (x + 1, y + 1), donate=donate)
    x, y = jnp.ones(3), jnp.ones(3)
    compiled = f.lower(x, y).compile()
    compiled(x, y)
    assert x.is_deleted() == (donate == "all")
    assert y.is_deleted()


def test_compiler_options():
    lowered = filter_jit(lambda x: x * 2).lower(jnp.ones(2))
    with pytest.raises(jax.errors.JaxRuntimeError, match="no such option"):
        lowered.compile(compiler_options={"no such option": "1"})
    assert lowered.compile()(jnp.ones(2)).tolist() == [2, 2]


def test_runtime_errors():
    f = filter_jit(lambda x: eqx.error_if(x, x < 0, "negative here"))
    compiled = f.lower(jnp.array(1.0)).compile()
    assert compiled(jnp.array(1.0)) == 1
    with pytest.raises(eqx.EquinoxRuntimeError, match="negative here"):
        compiled(jnp.array(-1.0))


def test_typed_keys():
    f = filter_jit(lambda k: jax.random.split(k))
    compiled = f.lower(jax.random.key(0)).compile()
    assert (compiled(jax.random.key(1)) == f(jax.random.key(1))).all()
    with pytest.raises(TypeError, match=r"`k` was key<fry>\[\]"):
        compiled(jax.random.key(0, impl="rbg"))
