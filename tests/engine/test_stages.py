"""Ahead of time: `trace`, `lower`, `compile`, `eval_shape`, and compiled calls.

They agree with the call. A compiled function raises for other arguments, and names the
leaf; if a static was changed in place, it says so.
"""

import copy
import inspect
import pickle

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import serialize_executable

from eqx_fastjit import Compiled, filter_jit, Lowered, Traced
from tests.support.modules import Holder
from tests.support.traces import count_traces


pytestmark = pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
X = jnp.ones(3)


def _model(seed=0):
    return eqx.nn.MLP(3, 3, 4, 2, key=jax.random.key(seed))


@filter_jit
def forward(model, x, scale=2):
    return model(x) * scale, scale, {"x": x}


def test_stages_agree_with_a_call():
    """Each stage gives the next, and a compiled call gives what a call gives."""
    traced = forward.trace(_model(), X)
    lowered = traced.lower()
    compiled = lowered.compile()
    assert [type(s) for s in (traced, lowered, compiled)] == [Traced, Lowered, Compiled]
    assert "stablehlo" in lowered.as_text()
    assert "dot_general" in str(traced.jaxpr)
    assert compiled.cost_analysis() is not None
    assert compiled.memory_analysis() is not None
    assert compiled.as_text()
    with pytest.raises(AttributeError, match="no_such_thing"):
        compiled.no_such_thing  # noqa: B018
    assert "forward" in repr(copy.copy(compiled))
    assert [*inspect.signature(compiled).parameters] == ["model", "x", "scale"]
    assert eqx.tree_equal(compiled(_model(), X), forward(_model(), X))
    assert eqx.tree_equal(compiled(x=X, model=_model(1)), forward(_model(1), X))
    assert eqx.tree_equal(compiled(_model(), np.ones(3)), forward(_model(), X))


def test_a_compiled_call_is_that_of_equinox():
    """The compiled call of `equinox.filter_jit` gives the same."""
    lowered = eqx.filter_jit(forward.__wrapped__).lower(_model(), X, scale=3)
    our_lowered = forward.lower(_model(), X, scale=3)
    theirs, ours = lowered.compile(), our_lowered.compile()
    assert eqx.tree_equal(theirs(_model(), X, scale=3), ours(_model(), X, scale=3))
    assert type(our_lowered.lowered) is type(lowered.lowered)
    assert type(ours.compiled) is type(theirs.compiled)


def test_shapes_stand_for_arrays():
    """A `jax.ShapeDtypeStruct` may be passed in place of an array."""
    model = eqx.filter_eval_shape(_model)
    x = jax.ShapeDtypeStruct((3,), jnp.float32)
    out, scale, rest = forward.eval_shape(model, x)
    assert out == jax.ShapeDtypeStruct((3,), jnp.float32)
    assert scale == 2 and rest["x"].shape == (3,)
    compiled = forward.lower(model, x).compile()
    assert compiled.out_info[0].shape == (3,)
    assert eqx.tree_equal(compiled(_model(), X), forward(_model(), X))


def test_stages_share_the_trace_of_calls():
    """What was traced ahead of time is not traced again by a call, nor vice versa."""
    f, traces = count_traces(lambda x, n: x * n)
    f.trace(jax.ShapeDtypeStruct(X.shape, X.dtype), 2)
    f.trace(X, 2)
    f.lower(X, 2).compile()
    f.eval_shape(X, 2)
    f(X, 2)
    f.lower(X, 2)
    assert len(traces) == 1


DIFFERENT = [
    (lambda m, x: (m, x, 3), r"`scale`.*2.*3"),
    (lambda m, x: (m, x, 2.0), r"`scale`.*2.*2\.0"),
    (lambda m, x: (m, x[:2], 2), r"'x' .*float32\[3\].*float32\[2\]"),
    (lambda m, x: (m, x.astype(int), 2), r"'x' .*int32\[3\]"),
    (lambda m, x: (m, 1.0, 2), "`x`"),
    (lambda m, x: (m, jax.ShapeDtypeStruct(x.shape, x.dtype), 2), "DtypeStruct"),
    (lambda m, x: (m, x, x), "`scale`"),
    (lambda m, x: (m, (x,), 2), r"`x(\[0\])?`"),
    (
        lambda m, x: (eqx.tree_at(lambda m: m.layers[1].bias, m, None), x, 2),
        r"`model\.layers\[1\]\.bias`",
    ),
    (
        lambda m, x: (eqx.tree_at(lambda m: m.activation, m, jnp.tanh), x, 2),
        r"`model\.activation`",
    ),
]


@pytest.mark.parametrize(("change", "message"), DIFFERENT)
def test_a_compiled_call_names_the_leaf_that_differs(change, message):
    """A call with other arguments than those it was lowered for is a `TypeError`."""
    model, x = _model(), X
    compiled = forward.lower(model, x).compile()
    for _ in range(2):
        with pytest.raises(TypeError, match=message):
            compiled(*change(model, x))
        compiled(model, x)


@pytest.mark.parametrize(("was", "now"), [(3, 1), (3, 2), (1, 3), (4, 0)])
def test_a_leaf_that_is_missing_or_new(was, now):
    """The message names the container that has more or fewer leaves, then and now."""
    compiled = filter_jit(lambda *, xs: sum(x.sum() for x in xs))
    compiled = compiled.lower(xs=[X] * was).compile()
    with pytest.raises(TypeError, match=r"`xs` was \[.*\] and is now \[.*\]"):
        compiled(xs=[X] * now)
    assert compiled(xs=[X] * was) == 3 * was


@pytest.mark.parametrize(
    ("static", "change"),
    [
        ([2], lambda s: s.append(3)),
        ({"a": [2]}, lambda s: s["a"].append(3)),
        ({2}, lambda s: s.add(3)),
    ],
)
def test_a_static_that_was_changed_since_then(static, change):
    """A compiled call refuses a static that was changed since it was lowered."""
    f = filter_jit(lambda h: h.x)
    compiled = f.lower(Holder(X, static)).compile()
    compiled(Holder(X, static))
    change(static)
    with pytest.raises(TypeError, match="a static was changed"):
        compiled(Holder(X, static))


@pytest.mark.parametrize(
    ("was", "now", "message"),
    [(2, 3, r"`m\.static` was 2 and is now 3"), (object(), object(), "another object")],
)
def test_another_static_field_in_a_compiled_call(was, now, message):
    """Static fields are part of what a compiled call checks."""
    compiled = filter_jit(lambda m: m.x).lower(Holder(X, was)).compile()
    assert compiled(Holder(X, was)).tolist() == [1, 1, 1]
    with pytest.raises(TypeError, match=message):
        compiled(Holder(X, now))


def test_a_wrapped_module():
    """Its own arrays are those of the compiled call."""
    model = _model()
    compiled = filter_jit(model).lower(X).compile()
    assert jnp.allclose(compiled(X), model(X))


def test_compiler_options():
    """Options of the compiler are passed on."""
    lowered = filter_jit(lambda x: x * 2).lower(X)
    with pytest.raises(jax.errors.JaxRuntimeError, match="no such option"):
        lowered.compile(compiler_options={"no such option": "1"})
    assert lowered.compile()(X).tolist() == [2, 2, 2]


def test_lowering_for_another_platform():
    """`lower(lowering_platforms=...)` is that of JAX."""

    @filter_jit
    def f(x):
        return jax.lax.platform_dependent(x, tpu=jnp.sin, default=jnp.cos)

    lowered = f.trace(X).lower(lowering_platforms=("tpu",))
    assert "stablehlo.sine" in lowered.as_text()


def test_runtime_errors():
    """A compiled call raises `EquinoxRuntimeError`."""
    f = filter_jit(lambda x: eqx.error_if(x, x < 0, "negative here"))
    compiled = f.lower(jnp.array(1.0)).compile()
    for _ in range(2):
        assert compiled(jnp.array(1.0)) == 1
        with pytest.raises(eqx.EquinoxRuntimeError, match="negative here"):
            compiled(jnp.array(-1.0))


def test_typed_keys():
    """Another implementation of random keys is another dtype."""
    f = filter_jit(lambda k: jax.random.split(k))
    compiled = f.lower(jax.random.key(0)).compile()
    assert (compiled(jax.random.key(1)) == f(jax.random.key(1))).all()
    with pytest.raises(TypeError, match=r"'k' .*key<fry>"):
        compiled(jax.random.key(0, impl="rbg"))


def test_a_compiled_function_cannot_be_traced():
    """Within `jax.jit` or under `jax.grad`, it is JAX's error."""
    compiled = filter_jit(lambda x: x * 2).lower(X).compile()
    for transform in (jax.jit, lambda f: jax.grad(lambda x: f(x).sum())):
        with pytest.raises(TypeError, match=r"[Tt]racer|transformation|abstract"):
            transform(compiled)(X)
    assert compiled(X).tolist() == [2, 2, 2]


def test_a_failed_trace_is_no_stage():
    """An exception in the function is raised by `trace`, and again by the next."""

    @filter_jit
    def f(x):
        raise KeyError("no")

    for stage in (f.trace, f.lower, f.eval_shape):
        with pytest.raises(KeyError, match="no"):
            stage(X)


def test_ahead_of_time_without_jit():
    """Under `jax.disable_jit()` the stages are as they are otherwise."""
    f = filter_jit(lambda x, n=2: {"y": x * n, "n": n})
    with jax.disable_jit():
        assert f.eval_shape(X)["y"].shape == f.lower(X).out_info["y"].shape == (3,)
        assert (f(X)["y"] == 2 * X).all()
    assert (f.lower(X).compile()(X)["y"] == 2 * X).all()


def test_export_by_jax():
    """`jax.export` takes a `jax.jit` of a jitted function, and says so otherwise."""
    f = filter_jit(lambda x: {"y": x * 2})
    with pytest.raises(ValueError, match=r"jax\.jit"):
        jax.export.export(f)(X)
    assert (jax.export.export(jax.jit(f))(X).call(X)["y"] == 2 * X).all()


def test_classes_that_check_their_arrays_are_lowered():
    """A pytree that checks its parts in `__init__` can be described by shapes."""

    @jax.tree_util.register_pytree_node_class
    class Checked:
        def __init__(self, x, n):
            if x.ndim != 1:
                raise ValueError("not a vector")
            self.x, self.n = x, n

        def tree_flatten(self):
            return (self.x,), self.n

        @classmethod
        def tree_unflatten(cls, n, children):
            return cls(*children, n)

    f = filter_jit(lambda c: c.x * c.n)
    struct = Checked(jax.ShapeDtypeStruct((3,), jnp.float32), 2)
    assert f.eval_shape(struct).shape == (3,)
    assert f.lower(struct).compile()(Checked(X, 2)).tolist() == [2, 2, 2]


def test_a_compiled_call_has_statics_of_its_own():
    """The trace may be of another model that was equal, and is changed later."""
    f = filter_jit(lambda holder, x: x * len(holder.static))
    first, second = Holder(X, [1]), Holder(X, [1])
    f(first, X)
    compiled = f.lower(second, X).compile()
    first.static.append(2)
    assert (compiled(second, X) == X).all()


def test_a_static_that_the_trace_itself_changes():
    """The trace is of neither value, and is not used again."""

    @filter_jit
    def f(holder):
        holder.static.append(1)
        return holder.x * len(holder.static)

    static = []
    f.trace(Holder(X, static))
    static.clear()
    assert (f(Holder(X, static)) == X).all()


def test_a_stage_inside_of_a_trace():
    """Within another trace, shapes can be asked for."""
    inner = filter_jit(lambda x, n: x[:n])

    @filter_jit
    def outer(x):
        return jnp.zeros(inner.eval_shape(x, 2).shape)

    assert outer(X).shape == (2,)


def test_a_compiled_program_is_serialized():
    """By JAX, as under Equinox: what is loaded is a function of the arrays alone."""
    compiled = filter_jit(lambda x, n: {"a": x * n, "n": n}).lower(X, 3).compile()
    parts = pickle.loads(
        pickle.dumps(serialize_executable.serialize(compiled.compiled))
    )
    loaded = serialize_executable.deserialize_and_load(
        *parts, execution_devices=list(X.devices())
    )
    assert jnp.array_equal(loaded(X)[0], compiled(X, 3)["a"])
