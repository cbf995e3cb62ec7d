"""Sharded arrays on eight virtual CPU devices, `in_shardings` and `out_shardings`.

Shardings are kept, and the two options may be prefixes of pytrees.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from eqx_fastjit import filter_jit


CPUS = jax.devices("cpu")


@pytest.fixture(autouse=True)
def _on_cpus():
    with jax.default_device(CPUS[0]):
        yield


@pytest.fixture
def mesh():
    auto = (jax.sharding.AxisType.Auto,)
    return jax.make_mesh((8,), ("d",), axis_types=auto, devices=CPUS)


def _linear(seed=0):
    return eqx.nn.Linear(8, 8, key=jax.random.key(seed))


def test_wherever_the_arguments_are(mesh):
    """Results, their shardings and commitment are those of Equinox."""
    x = jnp.arange(64.0).reshape(8, 8)
    placements = [
        x,
        jax.device_put(x, NamedSharding(mesh, P("d"))),
        jax.device_put(x, NamedSharding(mesh, P())),
        jax.device_put(x, CPUS[3]),
        np.asarray(x),
    ]

    def f(m, x):
        return jax.vmap(m)(x)

    ours, theirs = filter_jit(f), eqx.filter_jit(f)
    for y in (*placements, *placements):
        a, b = ours(_linear(), y), theirs(_linear(), y)
        np.testing.assert_allclose(a, b, rtol=1e-6)
        assert (a.sharding, a.committed) == (b.sharding, b.committed)


def test_one_mesh_after_another(mesh):
    """Arrays of one shape with other devices or layouts never share a result."""
    other = jax.sharding.Mesh(np.array(CPUS[::-1]).reshape(4, 2), ("a", "b"))
    x = jnp.arange(64.0).reshape(8, 8)
    shardings = [
        NamedSharding(mesh, P("d")),
        NamedSharding(mesh, P(None, "d")),
        NamedSharding(other, P("a", "b")),
        NamedSharding(other, P(("a", "b"))),
        jax.sharding.SingleDeviceSharding(CPUS[5]),
    ]
    f = filter_jit(lambda m, x: (m.weight @ x, m))
    expected = np.asarray(_linear().weight @ x)
    for sharding in (*shardings, *shardings):
        named = isinstance(sharding, NamedSharding)
        everywhere = NamedSharding(sharding.mesh, P()) if named else sharding
        y = jax.device_put(x, sharding)
        out, same = f(jax.device_put(_linear(), everywhere), y)
        np.testing.assert_allclose(out, expected, rtol=1e-5)
        assert out.devices() == y.devices()
        assert same.weight.sharding.is_equivalent_to(everywhere, 2)


def test_donated_sharded_buffers(mesh):
    """Donated sharded arrays are deleted, and results keep their sharding."""
    sharding = NamedSharding(mesh, P("d"))
    f = filter_jit(lambda x: x + 1, donate="all")
    for _ in range(3):
        x = jax.device_put(jnp.ones((8, 2)), sharding)
        y = f(x)
        assert x.is_deleted()
        assert y.sharding.is_equivalent_to(sharding, 2)


def test_shard_map_inside_and_outside(mesh):
    """`shard_map` within a jitted function, and a jitted function within it."""

    @filter_jit
    def inside(m, x):
        def local(x):
            return jax.lax.psum(jax.vmap(m)(x).sum(), "d")

        return jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P())(x)

    x = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P("d")))
    expected = jax.vmap(_linear())(jnp.ones((8, 8))).sum()
    for _ in range(3):
        np.testing.assert_allclose(inside(_linear(), x), expected, rtol=1e-5)
    inner = filter_jit(lambda x, n: jax.lax.psum(x * n, "d"))
    outside = jax.shard_map(
        lambda x: inner(x, 3), mesh=mesh, in_specs=P("d"), out_specs=P()
    )
    for _ in range(2):
        assert outside(jnp.arange(8.0)).tolist() == [84.0]


# --- options ---


def test_in_and_out_shardings_are_prefixes(mesh):
    """They are given for arguments and results, as prefixes of their pytrees."""
    data, everywhere = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())

    def f(model, batch, n=2):
        return model, jax.vmap(model)(batch["x"]) * n, n

    g = filter_jit(
        f, in_shardings=(everywhere, {"x": data}), out_shardings=(None, data, None)
    )
    batch = {"x": jnp.ones((8, 8))}
    for _ in range(3):
        model, out, n = g(_linear(), batch)
        model, out, n = g(model, batch=batch)
    assert n == 2 and type(model) is eqx.nn.Linear
    assert out.sharding.is_equivalent_to(data, 2)
    single = filter_jit(lambda x, y: (x, y), in_shardings=data, out_shardings=data)
    for out in single(jnp.ones(8), jnp.ones((8, 2))):
        assert out.sharding.is_equivalent_to(data, out.ndim)


def test_in_shardings_of_callables_and_of_any_arguments(mesh):
    """They are of the arguments: not of a callable's own arrays, nor of statics."""
    data = NamedSharding(mesh, P("d"))
    f = filter_jit(_linear(), in_shardings=(data,))
    assert f(jnp.ones(8)).shape == (8,)
    g = filter_jit(lambda *xs: xs, in_shardings=(data, None))
    a, b = g(jnp.ones(8), jnp.ones(8))
    assert a.sharding.is_equivalent_to(data, 1) and b.shape == (8,)
    h = filter_jit(lambda x, n, m: x * n * m, in_shardings=(None,))
    assert h(jnp.ones(()), 2, 3) == 6
    assert filter_jit(lambda n, m: n * m, in_shardings=())(2, 3) == 6


def test_shardings_that_do_not_fit(mesh):
    """The error names the arguments."""
    data = NamedSharding(mesh, P("d"))
    f = filter_jit(lambda x, y: x, in_shardings=(data,))
    with pytest.raises(ValueError, match="x, y"):
        f(jnp.ones(8), jnp.ones(8))
    g = filter_jit(lambda batch: batch["x"], in_shardings=({"y": data},))
    with pytest.raises(ValueError, match="`batch`"):
        g({"x": jnp.ones(8)})


def test_a_sharding_that_is_false():
    """`PartitionSpec()` is an option, although it is false."""
    mesh = jax.sharding.Mesh(np.array(CPUS[:2]), ("d",))
    x = jax.device_put(np.arange(4.0), NamedSharding(mesh, P("d")))

    def f(x):
        return x + 1

    with jax.set_mesh(mesh):
        for replicated in (True, False, True):
            options = {"out_shardings": P()} if replicated else {}
            out = filter_jit(f, **options)(x)
            assert out.sharding.is_fully_replicated == replicated


@pytest.mark.parametrize(
    "kind", ["call", "same trace", "in_shardings", "inside", "compiled"]
)
def test_calls_on_virtual_devices_block(mesh, waited, kind):
    """XLA ends the process if collectives of several runs starve each other."""
    sharding = NamedSharding(mesh, P("d"))
    x = jnp.ones(16)
    f = filter_jit(lambda x: jnp.sum(x))
    if kind == "in_shardings":
        f = filter_jit(lambda x: jnp.sum(x), in_shardings=sharding)
    elif kind == "inside":
        f = filter_jit(lambda x: jax.lax.with_sharding_constraint(x, sharding).sum())
    else:
        if kind == "same trace":
            f(x), f(x)
            assert waited == []
        x = jax.device_put(x, sharding)
    if kind == "compiled":
        f = f.lower(x).compile()
    for n in (1, 2, 3):
        f(x)
        assert len(waited) >= n
