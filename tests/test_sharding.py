"""Sharded arrays on eight virtual CPU devices."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from eqx_fastjit import filter_jit


@pytest.fixture
def mesh():
    return jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


def _double(tree):
    return jax.tree_util.tree_map(lambda a: a * 2 if eqx.is_array(a) else a, tree)


def _linear(seed=0):
    return eqx.nn.Linear(8, 8, key=jax.random.key(seed))


def test_committed_and_uncommitted_inputs(mesh):
    traces = 0

    def f(m, x):
        nonlocal traces
        traces += 1
        return jax.vmap(m)(x)

    sharded = NamedSharding(mesh, P("d"))
    x = jnp.arange(64.0).reshape(8, 8)
    placements = [
        x,
        jax.device_put(x, sharded),
        jax.device_put(x, NamedSharding(mesh, P())),
        jax.device_put(x, jax.devices()[3]),
        jax.device_put(x, sharded),
        np.asarray(x),
    ]
    ours, theirs = filter_jit(f), eqx.filter_jit(f)
    for y in placements:
        for _ in range(3):
            a, b = ours(_linear(), y), theirs(_linear(), y)
            np.testing.assert_allclose(a, b, rtol=1e-6)
            assert a.sharding == b.sharding
            assert a.committed == b.committed


def test_donated_sharded_buffers(mesh):
    f = filter_jit(lambda x: x + 1, donate="all")
    for _ in range(3):
        x = jax.device_put(jnp.ones((8, 2)), NamedSharding(mesh, P("d")))
        y = f(x)
        assert x.is_deleted()
        assert y.sharding.is_equivalent_to(NamedSharding(mesh, P("d")), 2)


def test_shard_map_inside(mesh):
    @filter_jit
    def f(m, x):
        def local(x):
            return jax.lax.psum(jax.vmap(m)(x).sum(), "d")

        return jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P())(x)

    x = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P("d")))
    for _ in range(3):
        np.testing.assert_allclose(
            f(_linear(), x), jax.vmap(_linear())(jnp.ones((8, 8))).sum(), rtol=1e-5
        )


def test_inside_shard_map(mesh):
    inner = filter_jit(lambda x, n: x * n)
    f = jax.shard_map(
        lambda x: inner(x, 3), mesh=mesh, in_specs=P("d"), out_specs=P("d")
    )
    np.testing.assert_array_equal(f(jnp.arange(8.0)), jnp.arange(8.0) * 3)


def test_in_and_out_shardings_are_prefixes(mesh):
    data, everywhere = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())
    with pytest.raises(ValueError, match="in_shardings"):
        eqx.filter_jit(lambda x: x, in_shardings=data)
    traces = 0

    def f(model, batch, n=2):
        nonlocal traces
        traces += 1
        return model, jax.vmap(model)(batch["x"]) * n, n

    g = filter_jit(
        f, in_shardings=(everywhere, {"x": data}), out_shardings=(None, data, None)
    )
    batch = {"x": jnp.ones((8, 8))}
    for _ in range(3):
        model, out, n = g(_linear(), batch)
        model, out, n = g(model, batch=batch)
    # as under `jax.jit`, which traces again once the arrays are on the mesh
    assert traces == 2
    assert n == 2
    assert type(model) is eqx.nn.Linear
    assert out.sharding.is_equivalent_to(data, 2)
    single = filter_jit(lambda x, y: (x, y), in_shardings=data, out_shardings=data)
    for out in single(jnp.ones(8), jnp.ones((8, 2))):
        assert out.sharding.is_equivalent_to(data, out.ndim)


class _Returns(eqx.Module):
    w: jax.Array

    def __call__(self, x):
        assert self.w.shape == (3,)  # which eight devices cannot share
        return (x,)


def test_in_shardings_of_methods_and_callables(mesh):
    data = NamedSharding(mesh, P("d"))
    f = filter_jit(_linear(), in_shardings=(data,))
    assert f(jnp.ones(8)).shape == (8,)
    # Of the argument, and not of the callable's own arrays.
    for prefix in (data, (data,)):
        (known,) = filter_jit(_Returns(jnp.ones(3)), in_shardings=prefix)(jnp.ones(8))
        assert known.sharding.is_equivalent_to(data, 1)
    g = filter_jit(lambda *xs: xs, in_shardings=(data, None))
    a, b = g(jnp.ones(8), jnp.ones(8))
    assert a.sharding.is_equivalent_to(data, 1)
    assert b.shape == (8,)


def test_in_shardings_are_only_for_arguments_with_arrays():
    f = filter_jit(lambda x, n, m: x * n * m, in_shardings=(None,))
    assert f(jnp.ones(()), 2, 3) == 6
    assert filter_jit(lambda n, m: n * m, in_shardings=())(2, 3) == 6


def test_shardings_that_do_not_fit(mesh):
    data = NamedSharding(mesh, P("d"))
    f = filter_jit(lambda x, y: x, in_shardings=(data,))
    with pytest.raises(ValueError, match=r"1 entries.*2 arguments \(x, y\)"):
        f(jnp.ones(8), jnp.ones(8))
    g = filter_jit(lambda batch: batch["x"], in_shardings=({"y": data},))
    with pytest.raises(ValueError, match="argument `batch` is not a pytree prefix"):
        g({"x": jnp.ones(8)})


def _train_step(jit, mesh):
    """A data-parallel step: replicated model, sharded batch, both donated."""

    @jit(donate="all")
    def step(model, batch, rate):
        def loss(model):
            return jnp.mean(jax.vmap(model)(batch) ** 2)

        value, grads = eqx.filter_value_and_grad(loss)(model)
        return value, eqx.apply_updates(
            model, jax.tree_util.tree_map(lambda g: -rate * g, grads)
        )

    model = _linear()
    model = eqx.filter_shard(model, NamedSharding(mesh, P()))
    values = []
    for i in range(20):  # until the function is warm, and beyond
        batch = jax.device_put(jnp.full((8, 8), 1.0 + i), NamedSharding(mesh, P("d")))
        before = model
        value, model = step(model, batch, 1e-3)
        assert before.weight.is_deleted()
        assert before.bias.is_deleted()
        assert model.weight.sharding.is_equivalent_to(NamedSharding(mesh, P()), 2)
        values.append(float(value))
    return values, model


def test_train_step_with_donation(mesh):
    ours, our_model = _train_step(filter_jit, mesh)
    theirs, their_model = _train_step(eqx.filter_jit, mesh)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    np.testing.assert_allclose(our_model.weight, their_model.weight, rtol=1e-6)


def test_shard_map_of_a_model_that_is_split(mesh):
    """The weights of a Module are themselves sharded, and donated."""
    split = NamedSharding(mesh, P(None, "d"))

    def forward(m, x):
        def local(weight, x):
            return jax.lax.psum(x @ weight.T, "d")

        specs = (P(None, "d"), P(None, "d"))
        return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P())(
            m.weight, x
        )

    x = jax.device_put(jnp.arange(16.0).reshape(2, 8), split)
    expected = np.asarray(x) @ np.asarray(_linear().weight).T
    f = filter_jit(forward, donate="all-except-first")
    for _ in range(20):
        y = jnp.copy(x)
        model = eqx.tree_at(
            lambda m: m.weight, _linear(), jax.device_put(_linear().weight, split)
        )
        np.testing.assert_allclose(f(model, y), expected, rtol=1e-5)
        assert not model.weight.is_deleted()


def test_one_mesh_after_another(mesh):
    """Arrays of one shape with different devices or layouts never share a result."""
    f = filter_jit(lambda m, x: (m.weight @ x, m))
    other = jax.sharding.Mesh(np.array(jax.devices()[::-1]).reshape(4, 2), ("a", "b"))
    x = jnp.arange(64.0).reshape(8, 8)
    shardings = [
        NamedSharding(mesh, P("d")),
        NamedSharding(mesh, P(None, "d")),
        NamedSharding(other, P("a", "b")),
        NamedSharding(other, P("b")),
        NamedSharding(other, P(("a", "b"))),
        jax.sharding.SingleDeviceSharding(jax.devices()[5]),
    ]
    expected = np.asarray(_linear().weight @ x)
    for sharding in (*shardings, *shardings):
        y = jax.device_put(x, sharding)
        where = (
            NamedSharding(sharding.mesh, P())
            if isinstance(sharding, NamedSharding)
            else sharding
        )
        model = jax.tree_util.tree_map(
            lambda a: jax.device_put(a, where) if eqx.is_array(a) else a,  # noqa: B023
            _linear(),
        )
        for _ in range(2):
            out, same = f(model, y)
            np.testing.assert_allclose(out, expected, rtol=1e-5)
            assert out.devices() == y.devices()
            assert same.weight.sharding.is_equivalent_to(where, 2)


@pytest.mark.parametrize(
    "kind", ["call", "same trace", "in_shardings", "inside", "compiled"]
)
def test_runs_on_virtual_devices_are_not_queued(mesh, waited, kind):
    """Calls block, because XLA aborts if collectives starve each other."""
    sharding = NamedSharding(mesh, P("d"))
    x = jnp.ones(16)
    f = filter_jit(lambda x: jnp.sum(x))
    if kind == "in_shardings":
        f = filter_jit(lambda x: jnp.sum(x), in_shardings=sharding)
    elif kind == "inside":
        f = filter_jit(lambda x: jax.lax.with_sharding_constraint(x, sharding).sum())
    else:
        for g in (f, f.lower(x).compile()):
            g(x)
        assert waited == []
        if kind != "same trace":
            f = filter_jit(lambda x: jnp.sum(x))
        x = jax.device_put(x, sharding)
    if kind == "compiled":
        f = f.lower(x).compile()
    for n in (1, 2, 3):
        f(x)
        assert waited == [()] * n
