"""On an accelerator, a call waits for transfers, and not for its results.

Errors are those of Equinox. A CPU stands in for the accelerator: what a call waits for
is counted.
"""

import gc
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import _blocking, filter_jit
from tests.support.modules import Holder
from tests.support.traces import count_traces


BATCH = (4, 3)
LARGE = np.ones((600, 600), np.float32)


@pytest.fixture(autouse=True)
def _accelerator(monkeypatch):
    """The default device is an accelerator, and all others are CPUs."""
    default = jax.local_devices()[0]
    monkeypatch.setattr(_blocking, "is_cpu", lambda device: device != default)


def batch():
    """An array that is made of a buffer."""
    return jnp.asarray(np.ones(BATCH, np.float32))


def block(fun, **options):
    """As under `install()`."""
    return filter_jit(fun, asynchronous=False, **options)


def step(model, state, x):
    """A training step, as far as arrays are concerned."""
    return {"model": model + x.mean(), "state": [state + 1, (model * 2,)]}


def _loop(call):
    out = {"model": jnp.ones(2), "state": [jnp.ones(5)]}
    for _ in range(4):
        yield
        out = call(out["model"], out["state"][0], batch())


def _compiled():
    return block(step).lower(jnp.ones(2), jnp.ones(5), batch()).compile()


class Trainer(eqx.Module):
    """A jitted method, whose instance is among its results."""

    model: jax.Array

    @block
    def step(self, state, x):
        """A step."""
        return Trainer(self.model + x.mean()), state + 1


def _methods():
    trainer, state = Trainer(jnp.ones(2)), jnp.ones(5)
    for _ in range(4):
        yield
        trainer, state = trainer.step(state, batch())


def _keys():
    split, key = block(lambda key, x: jax.random.split(key)[0]), jax.random.key(0)
    for _ in range(4):
        yield
        key = split(key, batch())


def _grads():
    loss = block(lambda model, x: (model * x.mean()).sum())
    model = block(lambda x: x + 1)(jnp.ones(2))
    for _ in range(4):
        yield
        jax.grad(loss)(model, batch())


LOOPS = {
    "a function": lambda: _loop(block(step)),
    "all is donated": lambda: _loop(block(step, donate="all")),
    "a compiled call": lambda: _loop(_compiled()),
    "a jitted method": _methods,
    "keys": _keys,
    "eager grad": _grads,
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_loop_waits_for_its_batch(loop, waited):
    """Model and state are from the call before, and are not waited for."""
    steps = loop()
    next(steps), next(steps)  # the first call waits for its results
    waited.clear()
    assert len(list(steps)) == 2
    assert waited == [BATCH] * 3


def _on(device):
    return lambda x: jax.device_put(x, device)


def _uncommitted(x):
    with jax.default_device(jax.devices("cpu")[1]):
        return jnp.asarray(np.asarray(x))


X, OUT = (2,), (7,)


def to_out(x):
    """A result of another shape."""
    return jnp.resize(x, OUT)


def checked(x):
    """It may raise."""
    return to_out(eqx.error_if(x, x < 0, "negative"))


# How a function is wrapped, what it is called with, and what that waits for.
CALLS = {
    "what is from outside": (block(to_out), jnp.array, [X]),
    "by default, nothing": (filter_jit(to_out), jnp.array, []),
    "a result": (block(to_out), block(jnp.array), []),
    "what was handed through": (block(to_out), block(lambda x: x), []),
    "a result that another call had": (block(to_out), filter_jit(jnp.array), [X]),
    "computed from a result": (block(to_out), lambda x: block(jnp.array)(x) + 1, [X]),
    "a copy of a small array": (block(to_out), np.asarray, []),
    "what may raise": (block(checked), jnp.array, [OUT]),
    "a donated array": (block(lambda x: x + 1, donate="all"), jnp.array, [X]),
    "on a CPU": (block(to_out), _on(jax.devices("cpu")[1]), [OUT]),
    "from a CPU": (block(to_out), _uncommitted, [OUT]),
    "nested": (block(lambda x: {"a": [x.x]}), lambda x: Holder(jnp.array(x), 1), [X]),
    "vmap": (lambda x: jax.vmap(block(jnp.sin))(x), jnp.array, [X]),
    "within a trace": (jax.jit(block(to_out)), jnp.array, []),
    "no arrays": (block(lambda x: 1), lambda x: 1, []),
}


@pytest.mark.parametrize(("f", "make", "expected"), CALLS.values(), ids=CALLS)
def test_what_a_call_waits_for(f, make, expected, waited):
    """It waits for arguments that no other call with `asynchronous=False` computed."""
    for _ in range(3):
        x = make(np.ones(X, np.float32))
        waited.clear()
        f(x)
    assert waited == expected


def test_the_first_call_waits_for_results(waited):
    """It has read constants, which may be buffers, too."""
    f = block(lambda x: to_out(x))
    f(block(jnp.array)(jnp.ones(X)))
    assert waited[-1] == OUT


def test_a_trace_that_is_for_several_devices(waited):
    """What a call waits for is decided by where it runs, each time."""
    f, traces = count_traces(to_out, asynchronous=False)
    places = [*jax.devices("cpu")[1:2], *jax.local_devices()[:1]] * 2
    for device in (*places, *places):
        f(jax.device_put(jnp.ones(X), device))
    assert len(traces) == 1
    for device in places:
        waited.clear()
        f(jax.device_put(jnp.ones(X), device))
        assert waited == [X if device == jax.local_devices()[0] else OUT]


def test_an_array_with_the_id_of_a_result(waited):
    """Results are known by themselves, and not by their addresses."""
    f, reused = block(lambda x: x + 1), 0
    x = np.ones(X, np.float32)
    f(x)
    for _ in range(200):
        ids = {id(y) for y in [f(x) for _ in range(20)]}
        others = [jax.device_put(x) for _ in range(20)]
        for y in others:
            reused += id(y) in ids
            waited.clear()
            f(y)
            assert waited == [X]
    assert reused > 0


def test_results_are_not_kept_alive():
    """They are known by weak references."""
    f = block(lambda x: x + 1)
    x = f(f(jnp.ones(X)))
    died = weakref.ref(x)
    del x
    gc.collect()
    assert died() is None


# --- large arrays of NumPy ---


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_large_batch_waits_for_its_transfer(asynchronous, waited):
    """The call does not wait for its results."""
    f = filter_jit(lambda w, x: w + x.mean(), asynchronous=asynchronous)
    compiled, w = f.lower(jnp.ones(2), LARGE).compile(), f(jnp.ones(2), LARGE)
    for g in (f, f, compiled, compiled):
        waited.clear()
        w = g(w, LARGE)
    assert waited == [LARGE.shape]


@pytest.mark.parametrize(
    "x",
    [
        np.arange(1 << 18),
        np.linspace(0, 1, 1 << 18),
        LARGE.T.astype(jnp.bfloat16)[::-1],
        np.broadcast_to(np.float16(2), (1 << 20,)),
        np.ones(1 << 21, bool),
        LARGE.view(np.matrix),
    ],
    ids=lambda x: f"{type(x).__name__}-{x.dtype}",
)
def test_large_arrays_are_traced_as_they_are(x):
    """Values, dtype, weak types, placement and traces are those of Equinox."""

    def f(x, y):
        return -x.astype(jnp.float32), x, y + 1

    ours, theirs = filter_jit(f), eqx.filter_jit(f)
    for y in (jnp.ones(2), _on(jax.local_devices()[0])(jnp.ones(2)), np.ones(2)):
        for a, b in zip(ours(x, y), theirs(x, y), strict=True):
            np.testing.assert_array_equal(a, b)
            for name in ("dtype", "weak_type", "sharding", "committed"):
                assert getattr(a, name) == getattr(b, name)
    with jax.default_device(jax.devices("cpu")[1]):
        assert ours(x, 1)[0].devices() == theirs(x, 1)[0].devices()


@pytest.mark.parametrize(
    "x",
    [
        np.array(["a"]),
        np.array([None, 1], object),
        np.array(["2020"], "M8"),
        np.ma.masked_array(LARGE, LARGE > 0),
        np.zeros(1 << 18, [("a", "f4"), ("b", "i4")]),
        np.array([None] * (1 << 18)),
    ],
    ids=lambda x: f"{type(x).__name__}-{x.dtype.kind}-{x.size}",
)
def test_arrays_that_jax_does_not_take(x):
    """The error is that of Equinox."""
    with pytest.raises(Exception) as theirs:
        eqx.filter_jit(lambda x: x)(x)
    with pytest.raises(type(theirs.value)):
        filter_jit(lambda x: x)(x)


def test_a_large_array_in_a_trace():
    """It is a constant of the trace, and its transfer is no part of it."""
    f = filter_jit(lambda *xs: sum(x.mean() for x in xs))
    for args in ([], [1.0]):
        jaxpr = jax.make_jaxpr(lambda y, args=args: f(LARGE, *([y] * len(args))))(1.0)
        assert len(jaxpr.eqns) == 1


def test_a_large_array_beside_others_on_a_mesh(waited):
    """On several devices a call with NumPy arrays waits for its results."""
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:2]), "d")
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    f, y = filter_jit(lambda x, y: y + x.mean()), jax.device_put(np.ones(2), spread)
    for _ in range(2):
        waited.clear()
        assert f(LARGE, y).tolist() == [2, 2]
    assert waited == [(2,)]
