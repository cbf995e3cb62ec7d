"""Behaviour that depends on a device that runs asynchronously.

`benchmarks/gpu.sh` runs these tests, on the device where JAX puts arrays. On a CPU most
of them pass because they have no way to fail.
"""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_fastjit


# Enough work for a call to return long before it is done.
_N = 600 if jax.default_backend() == "cpu" else 4096


def _slow(x):
    return jax.lax.fori_loop(0, 60, lambda _, y: jnp.tanh(y @ x), x)


def _busy():
    """Occupies the device first."""
    return jax.jit(_slow)(jnp.ones((_N, _N)) / _N)


class Net(eqx.Module):
    weight: jax.Array | np.ndarray
    name: str = "net"


# --- a call returns before the device is done ----------------------------------------


def _returns_early(f, x):
    f(x).block_until_ready()
    # This is not a speed test: the durations differ by a factor of hundreds, or not at
    # all. It tries several times, since XLA may run a call inline on a busy machine.
    for _ in range(5):
        start = time.perf_counter()
        out = f(x)
        dispatched = time.perf_counter() - start
        out.block_until_ready()
        if dispatched < (time.perf_counter() - start) / 3:
            return True
    return False


@pytest.mark.parametrize("in_module", [False, True])
def test_a_call_returns_before_the_device_is_done(in_module):
    x = jnp.ones((_N, _N)) / _N

    def f(x):
        return _slow(x.weight if in_module else x)

    if not _returns_early(jax.jit(_slow), x):
        pytest.skip("jax.jit itself waits here, as older versions do on the CPU")
    x = Net(x) if in_module else x
    assert _returns_early(eqx_fastjit.filter_jit(f), x)
    assert not _returns_early(eqx.filter_jit(f), x)


def test_a_chain_of_calls_is_in_order():
    step = eqx_fastjit.filter_jit(lambda net, x: Net(net.weight * 2 + x, net.name))
    net = Net(_busy() * 0 + 1)
    for i in range(20):
        net = step(net, jnp.asarray(float(i)))
    expected = 1.0
    for i in range(20):
        expected = expected * 2 + i
    assert float(net.weight[0, 0]) == expected


# --- donation ------------------------------------------------------------------------


def test_donated_arrays_are_gone_and_results_are_right():
    @eqx_fastjit.filter_jit(donate="all")
    def step(net, x):
        return Net(net.weight + x.sum(), net.name), x * 2

    net, x = Net(jnp.ones((64, 64))), jnp.ones((64,))
    for i in range(4):
        old, old_x = net, x
        net, x = step(net, x)
        assert old.weight.is_deleted() and old_x.is_deleted()
        assert float(x[0]) == 2.0 ** (i + 1)
    assert float(net.weight[0, 0]) == 1 + 64 * (1 + 2 + 4 + 8)


def test_what_is_donated_while_the_device_is_busy():
    """Donated memory is reused, but not before it was read."""
    step = eqx_fastjit.filter_jit(lambda x: (x + 1, x.max()), donate="all")
    x, greatest = _busy() * 0, []
    for _ in range(10):
        x, value = step(x)
        greatest.append(value)
    assert [float(y) for y in greatest] == [float(i) for i in range(10)]


def test_donation_of_all_but_the_first():
    step = eqx_fastjit.filter_jit(lambda x, y: x + y, donate="all-except-first")
    x, y = jnp.ones(3), jnp.ones(3)
    assert step(x, y).tolist() == [2, 2, 2]
    assert not x.is_deleted() and y.is_deleted()


# --- host callbacks ------------------------------------------------------------------


def test_error_if_raises_at_the_call():
    @eqx_fastjit.filter_jit
    def f(net, x):
        y = eqx.error_if(x, x < 0, "negative")
        return net.weight.sum() * 0 + y

    net, x = Net(_busy()), jnp.asarray(1.0)
    for _ in range(3):
        assert float(f(net, x)) == 1
        with pytest.raises(eqx.EquinoxRuntimeError, match="negative"):
            f(net, -x)
    assert float(f(net, x)) == 1


def test_a_callback_has_run_when_the_call_returns():
    seen = []

    @eqx_fastjit.filter_jit
    def f(x, n):
        jax.debug.callback(lambda y: seen.append(float(y)), _slow(x).sum() * 0 + n)
        return x

    x = jnp.ones((_N, _N)) / _N
    for i in range(4):
        f(x, jnp.asarray(float(i)))
        assert seen == [float(j) for j in range(i + 1)]


def test_results_of_a_callback():
    @eqx_fastjit.filter_jit
    def f(x):
        return jax.pure_callback(lambda y: np.asarray(y) * 2, x, x)

    for i in range(4):
        assert f(jnp.asarray([float(i)])).tolist() == [2.0 * i]


# --- NumPy arrays --------------------------------------------------------------------


@pytest.mark.parametrize("in_module", [False, True])
def test_a_batch_may_be_refilled_after_the_call(in_module):
    """JAX may read a NumPy array until the computation is done, so the call blocks."""

    def f(busy, x):
        x = x.weight if in_module else x
        return _slow(busy).sum() * 0 + x.sum()

    jitted, busy = eqx_fastjit.filter_jit(f), jnp.ones((_N, _N)) / _N
    batch, out = np.zeros((64, 64), np.float32), []
    for i in range(8):
        batch[:] = i
        out.append(jitted(busy, Net(batch) if in_module else batch))
    batch[:] = -1
    assert [float(y) / 64**2 for y in out] == [float(i) for i in range(8)]


# --- placement -----------------------------------------------------------------------


@pytest.mark.parametrize("which", [0, -1])
def test_results_are_where_the_arguments_are(which):
    f = eqx_fastjit.filter_jit(lambda net, x: Net(net.weight * x, net.name))
    for device in (jax.devices()[which], jax.devices("cpu")[which]):
        net = Net(jax.device_put(jnp.ones(3), device))
        for _ in range(3):
            net = f(net, 2.0)
        assert net.weight.devices() == {device}
        assert net.weight.tolist() == [8, 8, 8]


def test_memory_of_the_device_is_given_back():
    f = eqx_fastjit.filter_jit(lambda net, x: (net.weight + x, net.name))
    net, x = Net(jnp.ones((256, 256))), jnp.ones(())
    f(net, x)
    before = len(jax.live_arrays())
    for _ in range(50):
        f(net, x)
    assert len(jax.live_arrays()) <= before
